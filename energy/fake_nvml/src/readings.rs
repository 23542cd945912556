//! What the first GPU answers, in a file that several processes read: one line with the driver's status, the status and the
//! millijoules of the energy counter, and the status and the milliwatts of the power. It is read at every question.

use std::sync::atomic::Ordering::SeqCst;

use crate::{DRIVER_STATUS, GPUS};

/// Environment variable that names the file.
const FILE_VARIABLE: &str = "FAKE_NVML_READINGS";

/// Takes over what the file says now, if there is one.
pub(crate) fn refresh() {
    let Some(path) = std::env::var_os(FILE_VARIABLE) else {
        return;
    };
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    if let [driver, energy_status, energy_mj, power_status, power_mw] = numbers[..] {
        let gpu = &GPUS[0];
        DRIVER_STATUS.store(driver as u32, SeqCst);
        gpu.energy_status.store(energy_status as u32, SeqCst);
        gpu.energy_mj.store(energy_mj, SeqCst);
        gpu.power_status.store(power_status as u32, SeqCst);
        gpu.power_mw.store(power_mw as u32, SeqCst);
    }
}
