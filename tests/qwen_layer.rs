//! The layer of examples/qwen_layer on the golden modules.

mod common;
#[path = "../examples/qwen_layer/layer.rs"]
mod layer;

use keyhead::Backend;
use keyhead::io::File;

/// Twice what the library's own f32 is off (tests/golden/README.md), for the outputs of 16-bit layers, too: their weights and
/// inputs are 16 bits, the arithmetic here is f32.
const NOISE: f64 = 2e-6;

#[test]
fn golden_modules() {
    let backend = Backend::cpu().unwrap();
    for golden in common::files("gdn_module_") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("module.safetensors");
        std::fs::write(&path, golden.bytes()).unwrap();
        let errors = layer::run(&File::open(&path).unwrap(), &backend).unwrap();
        println!("{}: {errors:?}", golden.name);
        for error in [errors.prompt, errors.decode, errors.state, errors.conv_state] {
            assert!(error <= NOISE, "{}: {errors:?}", golden.name);
        }
    }
}
