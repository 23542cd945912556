//! `greengnn doctor` and `greengnn clocks`, the latter on a driver that is a file of numbers.

mod common;

use std::process::Command;

use common::gpu::{AMPERE, Computer, PASCAL, processes_with, wait_until};
use common::{Running, serial};

#[test]
fn a_killed_process_s_clocks_are_restored() {
    let _serial = serial();
    for (architecture, lowered, before) in [
        (AMPERE, "544 715 1328", "0 715 1328"),
        (PASCAL, "0 715 544", "0 715 1328"),
    ] {
        let computer = Computer::new(architecture);
        let holder = computer.start(&["clocks", "hold", "--gpu", "GPU-fake-0"]);
        computer.wait_for(lowered);
        assert_eq!(computer.lease_files(), 1);
        holder.signal(libc::SIGKILL);
        computer.wait_for(before);
        computer.has_no_lease();
        wait_until(
            || processes_with(&computer.leases()).is_empty(),
            || "the guard is left".to_owned(),
        );
        drop(holder);
    }
}

#[test]
fn a_process_that_is_told_to_end_restores_its_clocks_itself() {
    let _serial = serial();
    let computer = Computer::new(AMPERE);
    let holder = computer.start(&["clocks", "hold"]);
    computer.wait_for("544 715 1328");
    holder.signal(libc::SIGTERM);
    let output = holder.finish();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(computer.set(), "0 715 1328");
    assert_eq!(computer.lease_files(), 0);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("GPU-fake-0: asked for 544 MHz, it runs at 544 MHz"),
        "{said}"
    );
}

#[test]
fn clocks_that_were_left_low_are_reset() {
    let _serial = serial();
    let computer = Computer::new(AMPERE);
    let holder = computer.start(&["clocks", "hold"]);
    computer.wait_for("544 715 1328");
    let [guard] = processes_with(&computer.leases())[..] else {
        panic!("there is one guard");
    };
    // SAFETY: the guard is a process of this test.
    assert_eq!(unsafe { libc::kill(guard, libc::SIGKILL) }, 0);
    holder.signal(libc::SIGKILL);
    drop(holder);
    assert_eq!((computer.set().as_str(), computer.lease_files()), ("544 715 1328", 1));
    let shown = computer.start(&["clocks", "show"]).finish();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("544 MHz") && shown.contains("which is no more"),
        "{shown}"
    );
    let reset = computer.start(&["clocks", "reset"]).finish();
    assert!(reset.status.success(), "{reset:?}");
    assert_eq!((computer.set().as_str(), computer.lease_files()), ("0 715 1328", 0));
}

#[test]
fn without_a_driver_there_are_no_clocks_and_the_reason_is_told() {
    let _serial = serial();
    let nowhere = |command: &mut Command| {
        command.env("GREENGNN_NVML", "/no/such/library.so");
    };
    let output = Running::start_with(&["clocks", "reset"], nowhere).finish();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("libnvidia-ml.so.1 is not there"),
        "{said}"
    );
}

#[test]
fn the_doctor_says_what_can_be_measured_and_ends_with_a_status() {
    let _serial = serial();
    let output = Running::start(&["doctor"]).finish();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("energy of a run here would be"), "{said}");
    assert!(
        said.contains("rapl") && said.contains("nvml") && said.contains("CPU fingerprint"),
        "{said}"
    );

    let unreachable = Running::start(&["doctor", "--reach", "127.0.0.1:1", "--json"]).finish();
    assert!(!unreachable.status.success());
    let diagnosis: serde_json::Value = serde_json::from_slice(&unreachable.stdout).unwrap();
    assert_eq!(diagnosis["reached"][0]["address"], "127.0.0.1:1");

    let quality = diagnosis["quality"].as_str().unwrap();
    if quality != "measured" {
        let output = Running::start(&["doctor", "--require", "measured"]).finish();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains(&format!("energy would be {quality}, measured is required")),
            "{said}"
        );
    }
}
