//! Clocks through NVML: locked clocks where the GPU has them, application clocks on those before Volta.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::{DeviceArchitecture, GpuLockedClocksSetting};
use nvml_wrapper::error::NvmlError;

use super::{ClockControl, ClockSettings};
use crate::nvml::{GpuError, GpuReader, NvmlReader};

impl ClockControl for NvmlReader {
    fn uuids(&mut self) -> Result<Vec<String>, GpuError> {
        Ok(self.gpus()?.into_iter().map(|gpu| gpu.uuid).collect())
    }

    fn settings(&mut self, uuid: &str) -> Result<ClockSettings, GpuError> {
        self.ask(|nvml| {
            let device = nvml.device_by_uuid(uuid)?;
            if has_locked_clocks(&device)? {
                return Ok(ClockSettings::Locked);
            }
            Ok(ClockSettings::Application {
                memory_mhz: device.applications_clock(Clock::Memory)?,
                graphics_mhz: device.applications_clock(Clock::Graphics)?,
            })
        })
    }

    fn other_processes(&mut self, uuid: &str) -> Result<Vec<u32>, GpuError> {
        let own = std::process::id();
        self.ask(|nvml| {
            let processes = nvml.device_by_uuid(uuid)?.running_compute_processes()?;
            Ok(processes
                .into_iter()
                .map(|process| process.pid)
                .filter(|pid| *pid != own)
                .collect())
        })
    }

    fn lower(&mut self, uuid: &str, before: ClockSettings) -> Result<u32, GpuError> {
        self.ask(|nvml| {
            let mut device = nvml.device_by_uuid(uuid)?;
            match before {
                ClockSettings::Locked => {
                    let memory = device.supported_memory_clocks()?;
                    let memory = memory.into_iter().max().ok_or(NvmlError::NotSupported)?;
                    let lowest = lowest_graphics_clock(&device, memory)?;
                    device.set_gpu_locked_clocks(GpuLockedClocksSetting::Numeric {
                        min_clock_mhz: lowest,
                        max_clock_mhz: lowest,
                    })?;
                    Ok(lowest)
                }
                ClockSettings::Application { memory_mhz, .. } => {
                    let lowest = lowest_graphics_clock(&device, memory_mhz)?;
                    device.set_applications_clocks(memory_mhz, lowest)?;
                    Ok(lowest)
                }
            }
        })
    }

    fn restore(&mut self, uuid: &str, before: ClockSettings) -> Result<(), GpuError> {
        self.ask(|nvml| {
            let mut device = nvml.device_by_uuid(uuid)?;
            match before {
                ClockSettings::Locked => device.reset_gpu_locked_clocks(),
                ClockSettings::Application {
                    memory_mhz,
                    graphics_mhz,
                } => device.set_applications_clocks(memory_mhz, graphics_mhz),
            }
        })
    }

    fn reset(&mut self, uuid: &str) -> Result<(), GpuError> {
        let locked = self.ask(|nvml| nvml.device_by_uuid(uuid)?.reset_gpu_locked_clocks());
        let application = self.ask(|nvml| nvml.device_by_uuid(uuid)?.reset_applications_clocks());
        match (locked, application) {
            (Ok(()), _) | (_, Ok(())) => Ok(()),
            // A GPU has one of the two; the error of the other says nothing.
            (Err(GpuError::NotSupported), Err(error)) | (Err(error), Err(_)) => Err(error),
        }
    }

    fn observed_mhz(&mut self, uuid: &str) -> Result<u32, GpuError> {
        self.ask(|nvml| nvml.device_by_uuid(uuid)?.clock_info(Clock::Graphics))
    }
}

/// Volta and all that came after it. An architecture that the wrapper does not know is newer than it.
fn has_locked_clocks(device: &Device) -> Result<bool, NvmlError> {
    match device.architecture() {
        Ok(DeviceArchitecture::Kepler | DeviceArchitecture::Maxwell | DeviceArchitecture::Pascal) => Ok(false),
        Ok(_) | Err(NvmlError::UnexpectedVariant(_)) => Ok(true),
        Err(error) => Err(error),
    }
}

fn lowest_graphics_clock(device: &Device, memory_mhz: u32) -> Result<u32, NvmlError> {
    let clocks = device.supported_graphics_clocks(memory_mhz)?;
    clocks.into_iter().min().ok_or(NvmlError::NotSupported)
}
