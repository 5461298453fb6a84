//! What a device is capable of, as plain numbers: plans are made from these, with or without the device.

use std::ffi::c_int;

use cuda_shim::ffi;
use serde::Serialize;

use super::device::Device;
use super::driver::{self, During};
use crate::error::Result;

/// A device's name and numbers. Sizes are in bytes, clocks in kHz.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// The device's number, counted from 0 among those that CUDA_VISIBLE_DEVICES leaves.
    pub ordinal: usize,
    /// The marketing name, such as "NVIDIA H200".
    pub name: String,
    /// Compute capability, `major.minor`: 9.0 for sm_90.
    pub major: u32,
    pub minor: u32,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// The most shared memory, static and dynamic together, that one block can opt in to.
    pub shared_per_block_optin: u32,
    /// Shared memory of one multiprocessor.
    pub shared_per_sm: u32,
    /// 32-bit registers of one multiprocessor.
    pub registers_per_sm: u32,
    /// Size of the second-level cache.
    pub l2_bytes: u32,
    /// Size of the device's memory.
    pub memory_bytes: u64,
    /// Peak clock of the multiprocessors.
    pub clock_khz: u32,
    /// Peak clock of the memory.
    pub memory_clock_khz: u32,
    /// Width of the memory bus in bits.
    pub bus_width: u32,
    /// The newest CUDA version that the driver knows, as 1000 * major + 10 * minor.
    pub driver: i32,
}

impl DeviceFacts {
    /// Asks the driver about device `ordinal`, of any compute capability, without opening it.
    ///
    /// Errors: `NoDriver`, `NoDevice`, or the driver's own.
    pub fn query(ordinal: usize) -> Result<DeviceFacts> {
        let device = Device::find(ordinal)?;
        let ask = |number| attribute(number, device.as_raw());
        Ok(DeviceFacts {
            ordinal,
            name: device.name().during("cuDeviceGetName")?,
            major: ask(75)?,
            minor: ask(76)?,
            sms: ask(16)?,
            shared_per_block_optin: ask(97)?,
            shared_per_sm: ask(81)?,
            registers_per_sm: ask(82)?,
            l2_bytes: ask(38)?,
            memory_bytes: device.total_memory().during("cuDeviceTotalMem")? as u64,
            clock_khz: ask(13)?,
            memory_clock_khz: ask(36)?,
            bus_width: ask(37)?,
            driver: driver::version()?,
        })
    }
}

/// A device attribute by its number in the driver's interface (CU_DEVICE_ATTRIBUTE_...): `cust` stops at
/// number 91.
fn attribute(number: c_int, device: c_int) -> Result<u32> {
    let mut value = 0;
    // SAFETY: `value` is a C int, `device` a device that the driver gave us; an unknown number is answered by
    // an error.
    let answer = unsafe { ffi::cuDeviceGetAttribute(&mut value, number, device) };
    driver::check(format_args!("cuDeviceGetAttribute({number})"), answer)?;
    Ok(value.max(0) as u32)
}
