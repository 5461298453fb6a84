//! Runs a Qwen DeltaNet layer on a prompt, then on single tokens, and compares with what transformers computed in float64.
//!
//! `cargo run --release --example qwen_layer [FILE]`; FILE is a `gdn_module_*` golden file (tests/golden/README.md says what it holds).

mod layer;

use keyhead::io::File;
use keyhead::{Backend, Result};

const DEFAULT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/gdn_module_qwen3_next_bf16_hk2_hv4_t17.safetensors");

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).unwrap_or_else(|| DEFAULT.into());
    let file = File::open(path)?;
    let (backend, why) = Backend::auto()?;
    println!("{} on {why}", file.path().display());
    let errors = layer::run(&file, &backend)?;
    println!("largest error, relative to the largest value:");
    println!("  prompt      {:.1e}", errors.prompt);
    println!("  decode      {:.1e}", errors.decode);
    println!("  state       {:.1e}", errors.state);
    println!("  conv state  {:.1e}", errors.conv_state);
    Ok(())
}
