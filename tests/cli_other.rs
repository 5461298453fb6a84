//! `keyhead info`, `check` and `ptx` from outside.

use std::fs;
use std::process::{Command, Output, Stdio};

fn keyhead(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_keyhead")).args(args).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn info_without_and_with_a_gpu() {
    let output = keyhead(&["info"]);
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    for part in [
        env!("CARGO_PKG_VERSION"),
        "PTX: ",
        &keyhead::ptx::source(),
        "sm_70",
        "CPU",
        "    forward: ",
        "    topk: ",
        "    scores: ",
        "CUDA",
    ] {
        assert!(shown.contains(part), "no `{part}` in: {shown}");
    }
    let output = keyhead(&["info", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(info["ptx"]["modules"][0]["name"], "sm_70");
    assert_eq!(info["cpu"]["plan"].as_array().map(Vec::len), Some(3));
    for device in
        info["cuda"]["devices"].as_array().unwrap().iter().filter(|device| device["error"].is_null())
    {
        let plan = device["plan"].to_string();
        assert!(plan.contains("forward 16/48 heads: prepare, "), "{plan}");
    }
    // Either a device or the reason why there is none.
    assert_ne!(info["cuda"]["devices"].as_array().unwrap().is_empty(), info["cuda"]["error"].is_null());
}

#[test]
fn ptx_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a/b");
    let output = keyhead(&["ptx", "-o", target.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
    let manifest = fs::read_to_string(target.join("manifest.json")).unwrap();
    assert_eq!(manifest, keyhead::ptx::manifest().unwrap());
    for module in keyhead::ptx::MODULES {
        let name = keyhead::ptx::file_name(module);
        assert_eq!(fs::read_to_string(target.join(&name)).unwrap(), module.text);
        assert!(manifest.contains(&name));
        let output = keyhead(&["ptx", "--arch", module.name]);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(text(&output.stdout), module.text);
    }
    assert_eq!(fs::read_dir(&target).unwrap().count(), keyhead::ptx::MODULES.len() + 1);

    for args in [&["ptx", "--arch", "sm_75"][..], &["ptx"], &["ptx", "--arch", "sm_75", "-o", "x"]] {
        let output = keyhead(args);
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output.stderr);
        assert!(said.contains("--arch") && said.contains("sm_70, sm_80, sm_90"), "{said}");
    }
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let output = keyhead(&["ptx", "-o", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_keyhead"))
        .args(["ptx", "--arch", "sm_90"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn check_ends_with_its_count() {
    let output = keyhead(&["check", "--backend", "cpu"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let last = text(&output.stdout).lines().last().unwrap();
    let passed = last.strip_suffix(" passed, 0 failed").unwrap_or_else(|| panic!("{last}"));
    assert!(passed.parse::<u32>().unwrap() > 0);
}

#[test]
fn unknown_commands_and_versions() {
    for args in [&[][..], &["frobnicate"], &["info", "--nope"], &["gdn"]] {
        assert_eq!(keyhead(args).status.code(), Some(2), "{args:?}");
    }
    let output = keyhead(&["--version"]);
    assert_eq!(text(&output.stdout), concat!("keyhead ", env!("CARGO_PKG_VERSION"), "\n"));
    for command in ["info", "gdn", "check", "ptx"] {
        let output = keyhead(&["help", command]);
        assert_eq!(output.status.code(), Some(0));
    }
    assert!(text(&keyhead(&["help", "gdn"]).stdout).contains("norm_weight     [128]"));
}

#[test]
fn a_forced_gpu_kernel_is_not_replaced_by_the_cpu() {
    for (name, value, says) in [
        ("KEYHEAD_GDN", "pipe", "variant `pipe` cannot run here"),
        ("KEYHEAD_GDN", "junk", "accepted: auto, heads, cols, pipe, keyhead, scan"),
        ("STRATA_GDN_REC_HEADS", "", "variant `heads` cannot run here"),
        ("STRATA_GDN_PIPELINE", "0", "variant `cols` cannot run here"),
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_keyhead"))
            .args(["check", "--backend", "cpu", "--only", "none"])
            .env(name, value)
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}={value}: {message}");
        assert!(message.contains(says), "{name}={value}: {message}");
    }
}
