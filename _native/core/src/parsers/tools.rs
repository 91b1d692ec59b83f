//! The tools of a request, as far as reading calls needs them.

use std::collections::HashMap;

use serde_json::Value;

/// JSON types a value may have, as bits. None at all: nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    pub const STRING: Self = Self(1);
    pub const INTEGER: Self = Self(2);
    pub const NUMBER: Self = Self(4);
    pub const BOOLEAN: Self = Self(8);
    pub const NULL: Self = Self(16);
    pub const OBJECT: Self = Self(32);
    pub const ARRAY: Self = Self(64);

    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub fn is_unknown(self) -> bool {
        self.0 == 0
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "object" => Self::OBJECT,
            "array" => Self::ARRAY,
            _ => Self(0),
        }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::STRING,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Null => Self::NULL,
            Value::Object(_) => Self::OBJECT,
            Value::Array(_) => Self::ARRAY,
        }
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The types a schema allows, following local references.
    fn of_schema(schema: &Value, root: &Value, depth: u8) -> Self {
        let Some(fields) = schema.as_object().filter(|_| depth > 0) else { return Self(0) };
        let list = |key: &str| fields.get(key).and_then(Value::as_array).into_iter().flatten();
        let mut types = match fields.get("type") {
            Some(Value::String(name)) => Self::named(name),
            Some(Value::Array(_)) => {
                list("type").filter_map(Value::as_str).map(Self::named).fold(Self(0), Self::and)
            }
            _ => Self(0),
        };
        if types.is_unknown() {
            types = list("enum").chain(fields.get("const")).map(Self::of).fold(types, Self::and);
        }
        for branch in ["anyOf", "oneOf", "allOf"].into_iter().flat_map(list) {
            types = types.and(Self::of_schema(branch, root, depth - 1));
        }
        if let Some(target) =
            fields.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'))
        {
            let target = root.pointer(target).unwrap_or(&Value::Null);
            types = types.and(Self::of_schema(target, root, depth - 1));
        }
        if fields.get("nullable") == Some(&Value::Bool(true)) && !types.is_unknown() {
            types = types.and(Self::NULL);
        }
        types
    }
}

/// The tools a model may call in one request.
#[derive(Debug, Default)]
pub struct Tools {
    /// False: at most one call comes out (`parallel_tool_calls`).
    pub parallel: bool,
    /// A call of a tool that is not here comes out all the same, as with SGLang's
    /// SGLANG_FORWARD_UNKNOWN_TOOLS. Otherwise it is dropped, as there by default.
    pub forward_unknown: bool,
    parameters: HashMap<String, HashMap<String, Types>>,
}

impl Tools {
    /// From names and parameter schemas (JSON Schema; null where a tool has none).
    pub fn new<'a>(tools: impl IntoIterator<Item = (&'a str, &'a Value)>, parallel: bool) -> Self {
        let parameters =
            tools.into_iter().map(|(name, schema)| (name.to_owned(), parameters(schema))).collect();
        Self { parallel, forward_unknown: false, parameters }
    }

    pub fn knows(&self, name: &str) -> bool {
        self.parameters.contains_key(name)
    }

    /// The types that a tool's parameter may have.
    pub fn types(&self, tool: &str, parameter: &str) -> Types {
        self.parameters.get(tool).and_then(|known| known.get(parameter)).copied().unwrap_or_default()
    }
}

fn parameters(schema: &Value) -> HashMap<String, Types> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let typed = |(name, property): (&String, &Value)| (name.clone(), Types::of_schema(property, schema, 8));
    properties.into_iter().flatten().map(typed).collect()
}
