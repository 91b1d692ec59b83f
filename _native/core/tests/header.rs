//! The checked-in header is what cbindgen makes of `src/ffi.rs`, the files of `src/ffi/` and the codes of
//! `src/error.rs`; `WRITE_HEADER=1` writes it anew. cbindgen takes what `ffi.rs` declares with `mod` for a file
//! beside it: a part of the ABI that has the name of one of the crate's modules brings that one's constants along.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(root.join("src/ffi.rs"))
        .with_src(root.join("src/ffi/tokenizers.rs"))
        .with_src(root.join("src/ffi/jobs.rs"))
        .with_src(root.join("src/ffi/streams.rs"))
        .with_src(root.join("src/ffi/http1.rs"))
        .with_src(root.join("src/ffi/net.rs"))
        .with_src(root.join("src/ffi/lending.rs"))
        .with_src(root.join("src/ffi/prefix.rs"))
        .with_src(root.join("src/error.rs"))
        .generate()
        .expect("a header");
    let mut made = Vec::new();
    bindings.write(&mut made);
    let path = root.join("../wsgi_router_core.h");
    if std::env::var_os("WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).expect("the header is written");
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == made, "wsgi_router_core.h is out of date: run `make header`");
}
