//! The machine: QEMU without acceleration, three disks behind NBD, and a virtio serial port.
//!
//! The guest's `write` to the port returns when QEMU has passed the bytes on, so every line that
//! was written before a cut is read after it.

use super::guest::Guest;
use crate::process::Outcome;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

/// The guest's disks: name and QEMU device. A virtio disk has no FUA; an NVMe disk has.
pub(super) const DISKS: [(&str, &str); 3] = [
    (
        "ext4",
        "virtio-blk-pci,drive=ext4,write-cache=on,physical_block_size=4096",
    ),
    ("disk", "virtio-blk-pci,drive=disk,write-cache=on"),
    ("rocksdb", "nvme,drive=rocksdb,serial=rocksdb"),
];

/// An event of the machine's life.
#[derive(Debug)]
pub(super) enum Event {
    /// A line of the guest's.
    Said(String),
    /// The power went off.
    Off,
    /// QEMU ended.
    Ended,
}

/// The machine while it has power.
pub(super) struct Machine(Child);

/// The socket of a disk in the folder that QEMU runs in.
pub(super) fn socket(disk: &str) -> String {
    format!("{disk}.socket")
}

/// The file with the kernel's messages and the programs' standard error.
pub(super) const CONSOLE: &str = "console.log";

impl Machine {
    /// Starts it in a folder with the disks' sockets.
    pub(super) fn start(guest: &Guest, folder: &Path, events: Sender<Event>) -> Outcome<Machine> {
        let mut command = Command::new("qemu-system-x86_64");
        command
            .current_dir(folder)
            .args([
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "Nehalem",
                "-machine",
                "q35",
            ])
            .args(["-smp", "2", "-m", "768"])
            .args([
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-no-reboot",
            ])
            .arg("-kernel")
            .arg(&guest.kernel)
            .arg("-initrd")
            .arg(&guest.initial_files)
            .args([
                "-append",
                "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check",
            ])
            .args(["-serial", &format!("file:{CONSOLE}")])
            .args(["-chardev", "stdio,id=said,signal=off"])
            .args([
                "-device",
                "virtio-serial-pci",
                "-device",
                "virtserialport,chardev=said",
            ]);
        for (disk, device) in DISKS {
            let socket = socket(disk);
            let drive =
                format!("driver=nbd,node-name={disk},server.type=unix,server.path={socket}");
            command.args(["-blockdev", &drive, "-device", device]);
        }
        // SAFETY: prctl may be called between fork and exec, and only sets a flag of the child.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        // Without an open standard input QEMU takes the port for disconnected, and writes wait.
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("could not run qemu-system-x86_64: {error}"))?;
        let said = child.stdout.take().ok_or("QEMU has no standard output")?;
        thread::spawn(move || {
            let mut lines = BufReader::new(said);
            let mut line = Vec::new();
            // A line that the kill cut off is dropped.
            while lines.read_until(b'\n', &mut line).is_ok() && line.last() == Some(&b'\n') {
                let said = String::from_utf8_lossy(&line).trim_end().to_owned();
                let _ = events.send(Event::Said(said));
                line.clear();
            }
            let _ = events.send(Event::Ended);
        });
        Ok(Machine(child))
    }

    /// Tells the writers to begin.
    pub(super) fn go(&mut self) -> Outcome {
        let input = self.0.stdin.as_mut().ok_or("QEMU has no standard input")?;
        input
            .write_all(b"go\n")
            .map_err(|error| format!("could not speak to the guest: {error}"))
    }

    /// Kills QEMU. Its last lines still arrive, up to [`Event::Ended`].
    pub(super) fn kill(mut self) -> Outcome {
        self.end()
            .map_err(|error| format!("could not kill QEMU: {error}"))
    }

    fn end(&mut self) -> std::io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // After an error; otherwise it has ended.
        let _ = self.end();
    }
}
