//! The semantics of templates, each as transformers has it.
