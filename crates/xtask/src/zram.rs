//! `/dev/zram0`, claimed for a benchmark: a block device in memory.
//!
//! It is used only if it is not set up, and reset afterwards, also after an error or Ctrl-C. No
//! other device is ever touched.

use std::fs;
use std::path::Path;

use crate::process::{self, Outcome};

/// The only device that is used.
pub(crate) const DEVICE: &str = "/dev/zram0";
const CONTROL: &str = "/sys/block/zram0";

/// The device, ours until dropped.
pub(crate) struct Zram(());

impl Zram {
    /// Refuses without root, without the device, and if the device has a size: it is in use then.
    pub(crate) fn claim() -> Outcome<Zram> {
        if !process::is_root() {
            return Err("this needs root: it formats and mounts /dev/zram0".to_owned());
        }
        if !Path::new(CONTROL).exists() {
            return Err(format!("there is no {DEVICE} (try: modprobe zram)"));
        }
        let size = read_control("disksize")?;
        if size != "0" {
            return Err(format!(
                "{DEVICE} is in use or was left behind ({size} bytes). If it is nobody's: \
                 umount what is on it, then echo 1 > {CONTROL}/reset"
            ));
        }
        outlive_ctrl_c();
        Ok(Zram(()))
    }

    /// Empties it and gives it a size.
    pub(crate) fn set_up(&self, size: &str) -> Outcome {
        write_control("reset", "1")?;
        write_control("comp_algorithm", "lz4")?;
        write_control("disksize", size)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        if let Err(complaint) = write_control("reset", "1") {
            eprintln!("xtask: {complaint}");
        }
    }
}

/// From now on Ctrl-C ends the running child program, whose failure then ends this task in order.
fn outlive_ctrl_c() {
    extern "C" fn nothing(_signal: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler does nothing, so it may interrupt anything; programs that we start
        // get the default back.
        unsafe { libc::signal(signal, handler) };
    }
}

fn read_control(file: &str) -> Outcome<String> {
    let path = format!("{CONTROL}/{file}");
    let text =
        fs::read_to_string(&path).map_err(|error| format!("could not read {path}: {error}"))?;
    Ok(text.trim().to_owned())
}

fn write_control(file: &str, value: &str) -> Outcome {
    let path = format!("{CONTROL}/{file}");
    fs::write(&path, value).map_err(|error| format!("could not write {value} to {path}: {error}"))
}
