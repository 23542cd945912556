//! A libnvidia-ml without a GPU: what the real `nvml-wrapper` loads in tests.
//!
//! It has the functions that the meter calls, with NVML's names, signatures and status codes, and a few of its own by which
//! a test says what they answer. Every copy of the file that is loaded has a state of its own, but for clocks and for the
//! readings of the first GPU, which several processes may share through files.

use std::ffi::{CStr, c_char, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

mod clocks;
mod readings;

const SUCCESS: u32 = 0;
const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;

const MOST_GPUS: usize = 4;

/// What one GPU answers: status codes and values.
struct Gpu {
    energy_status: AtomicU32,
    energy_mj: AtomicU64,
    power_status: AtomicU32,
    power_mw: AtomicU32,
    split: AtomicU32,
}

static GPUS: [Gpu; MOST_GPUS] = [const {
    Gpu {
        energy_status: AtomicU32::new(SUCCESS),
        energy_mj: AtomicU64::new(0),
        power_status: AtomicU32::new(SUCCESS),
        power_mw: AtomicU32::new(0),
        split: AtomicU32::new(0),
    }
}; MOST_GPUS];

static GPU_COUNT: AtomicU32 = AtomicU32::new(1);

/// The status of every call while it is not `SUCCESS`: a driver that has gone.
static DRIVER_STATUS: AtomicU32 = AtomicU32::new(SUCCESS);

/// Sets the number of GPUs and the status of the driver.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nvml_set_driver(gpu_count: u32, status: u32) {
    GPU_COUNT.store(gpu_count.min(MOST_GPUS as u32), SeqCst);
    DRIVER_STATUS.store(status, SeqCst);
}

/// Sets what the GPU of this index answers.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nvml_set_gpu(
    index: u32,
    energy_status: u32,
    energy_mj: u64,
    power_status: u32,
    power_mw: u32,
    split: u32,
) {
    if let Some(gpu) = GPUS.get(index as usize) {
        gpu.energy_mj.store(energy_mj, SeqCst);
        gpu.energy_status.store(energy_status, SeqCst);
        gpu.power_mw.store(power_mw, SeqCst);
        gpu.power_status.store(power_status, SeqCst);
        gpu.split.store(split, SeqCst);
    }
}

/// Writes an answer, or gives the status why there is none.
///
/// # Safety
/// `to` is null or may be written.
unsafe fn answer<T>(to: *mut T, value: Result<T, u32>) -> u32 {
    match (DRIVER_STATUS.load(SeqCst), value) {
        (SUCCESS, Ok(_)) if to.is_null() => INVALID_ARGUMENT,
        (SUCCESS, Ok(value)) => {
            unsafe { to.write(value) };
            SUCCESS
        }
        (SUCCESS, Err(status)) => status,
        (driver, _) => driver,
    }
}

/// Writes a string with its end.
///
/// # Safety
/// `to` is null or has room for `length` bytes.
unsafe fn answer_text(to: *mut c_char, length: c_uint, text: &str) -> u32 {
    let driver = DRIVER_STATUS.load(SeqCst);
    if driver != SUCCESS {
        return driver;
    }
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    if text.len() >= length as usize {
        return INSUFFICIENT_SIZE;
    }
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    SUCCESS
}

/// A handle is the GPU's index and one, so that it is never null.
fn handle(index: u32) -> Result<*mut c_void, u32> {
    if index < GPU_COUNT.load(SeqCst) {
        Ok(std::ptr::without_provenance_mut(index as usize + 1))
    } else {
        Err(NOT_FOUND)
    }
}

fn index_of(device: *mut c_void) -> usize {
    device.addr().wrapping_sub(1)
}

fn gpu(device: *mut c_void) -> Result<&'static Gpu, u32> {
    GPUS.get(index_of(device)).ok_or(INVALID_ARGUMENT)
}

fn uuid(index: usize) -> String {
    format!("GPU-fake-{index}")
}

/// A reading and its status.
fn reading<T>(status: &AtomicU32, value: T) -> Result<T, u32> {
    match status.load(SeqCst) {
        SUCCESS => Ok(value),
        status => Err(status),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> u32 {
    clocks::read_environment();
    readings::refresh();
    DRIVER_STATUS.load(SeqCst)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> u32 {
    SUCCESS
}

/// # Safety
/// As for NVML: `version` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> u32 {
    unsafe { answer_text(version, length, "535.54.03") }
}

/// # Safety
/// As for NVML: `count` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> u32 {
    readings::refresh();
    unsafe { answer(count, Ok(GPU_COUNT.load(SeqCst))) }
}

/// # Safety
/// As for NVML: `device` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut *mut c_void) -> u32 {
    unsafe { answer(device, handle(index)) }
}

/// # Safety
/// As for NVML: `wanted` is a string with its end, and `device` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(wanted: *const c_char, device: *mut *mut c_void) -> u32 {
    if wanted.is_null() {
        return INVALID_ARGUMENT;
    }
    let wanted = unsafe { CStr::from_ptr(wanted) };
    let index = (0..MOST_GPUS).find(|index| uuid(*index).as_bytes() == wanted.to_bytes());
    let found = index.map_or(Err(NOT_FOUND), |index| handle(index as u32));
    unsafe { answer(device, found) }
}

/// # Safety
/// As for NVML: `name` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(_device: *mut c_void, name: *mut c_char, length: c_uint) -> u32 {
    unsafe { answer_text(name, length, "Fake GPU") }
}

/// # Safety
/// As for NVML: `text` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: *mut c_void, text: *mut c_char, length: c_uint) -> u32 {
    unsafe { answer_text(text, length, &uuid(index_of(device))) }
}

/// # Safety
/// As for NVML: both modes may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(device: *mut c_void, now: *mut c_uint, next: *mut c_uint) -> u32 {
    let mode = gpu(device).map(|gpu| gpu.split.load(SeqCst));
    unsafe { answer(now, mode).max(answer(next, mode)) }
}

/// # Safety
/// As for NVML: `milliwatts` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(device: *mut c_void, milliwatts: *mut c_uint) -> u32 {
    readings::refresh();
    let power = gpu(device).and_then(|gpu| reading(&gpu.power_status, gpu.power_mw.load(SeqCst)));
    unsafe { answer(milliwatts, power) }
}

/// # Safety
/// As for NVML: `millijoules` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: *mut c_void,
    millijoules: *mut c_ulonglong,
) -> u32 {
    readings::refresh();
    let energy = gpu(device).and_then(|gpu| reading(&gpu.energy_status, gpu.energy_mj.load(SeqCst)));
    unsafe { answer(millijoules, energy) }
}
