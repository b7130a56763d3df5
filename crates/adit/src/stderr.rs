//! Lines on standard error that wait for no reader.
//!
//! A thread that emits an event may be the volume's worker. If it waited for the reader of a full
//! pipe, the volume would wait, too; and if that reader waits for the volume, for ever. So a line
//! is written only if it fits at once, and lost lines are counted.
//!
//! Invariants: the descriptor stays as it is (with `O_NONBLOCK`, all processes that share it would
//! meet `EAGAIN`). No lock is held, so a forked child can write, too.

use adit_base::fork::Registered;
use adit_base::numbers;
use adit_base::sync::atomic::{AtomicU64, Ordering};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::borrow::Cow;
use std::io::{IoSlice, IsTerminal};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// A pipe that can be written takes so many bytes (`PIPE_BUF`), and all of them or none.
const LINE_BYTES_MAX: usize = 4096;

/// Lines that have not been written since the last one that was.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Writes a line, which ends with a newline character, to standard error, if nothing has to wait
/// for that. Otherwise the line is lost, and the next one that is written says how many were. A
/// line of more than 4096 bytes is cut.
pub fn write_to_stderr(line: &str) {
    write_counting(rustix::stdio::stderr(), &LOST, line);
}

fn write_counting(to: BorrowedFd<'_>, lost: &AtomicU64, line: &str) {
    let before = lost.swap(0, Ordering::Relaxed);
    if before > 0 {
        let said = format!(
            "adit: warning: {before} messages are lost: nobody read standard error in time\n"
        );
        if !write(to, said.as_bytes()) {
            lost.fetch_add(before + 1, Ordering::Relaxed);
            return;
        }
    }
    if !write(to, shortened(line).as_bytes()) {
        lost.fetch_add(1, Ordering::Relaxed);
    }
}

fn shortened(line: &str) -> Cow<'_, str> {
    const END: &str = "…\n";
    if line.len() <= LINE_BYTES_MAX {
        return Cow::Borrowed(line);
    }
    let mut end = LINE_BYTES_MAX - END.len();
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}{END}", &line[..end]))
}

/// False: not now. True also if that is impossible for ever: there is nowhere to tell.
fn write(to: BorrowedFd<'_>, line: &[u8]) -> bool {
    let kind = rustix::fs::fstat(to).map(|stat| FileType::from_raw_mode(stat.st_mode));
    // A terminal says that there is room for a line where there is some for a character.
    if kind == Ok(FileType::CharacterDevice)
        && to.is_terminal()
        && let Ok(terminal) = without_waiting(to)
    {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&terminal, line));
        return match written {
            Ok(written) => written == line.len(),
            Err(errno) => errno != Errno::AGAIN,
        };
    }
    // These two keep a writer waiting between a poll and its write, when another writer is faster.
    // For files, `NOWAIT` has another meaning.
    let is_shared = matches!(kind, Ok(FileType::Fifo | FileType::Socket));
    let mut left = line;
    while !left.is_empty() {
        let now = Timespec::default();
        match poll(&mut [PollFd::new(&to, PollFlags::OUT)], Some(&now)) {
            Ok(0) => return false,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return true,
        }
        let written = if is_shared {
            write_now(to, left)
        } else {
            rustix::io::write(to, left)
        };
        match written {
            Ok(written) => left = &left[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return false,
            Err(_) => return true,
        }
    }
    true
}

/// The same terminal, opened once more: nobody else's descriptor has this one's flags.
fn without_waiting(terminal: BorrowedFd<'_>) -> rustix::io::Result<Registered<OwnedFd>> {
    let path = format!("/proc/self/fd/{}", terminal.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    numbers::high(|| rustix::fs::open(&path, flags, Mode::empty()))
}

/// Writes where poll has found room, and waits for none. Kernels before 6.4 can't say that of a
/// pipe.
fn write_now(to: BorrowedFd<'_>, data: &[u8]) -> rustix::io::Result<usize> {
    const WHERE_IT_IS: u64 = u64::MAX;
    let pieces = [IoSlice::new(data)];
    match rustix::io::pwritev2(to, &pieces, WHERE_IT_IS, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE | Errno::PERM) => {
            rustix::io::write(to, data)
        }
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, FromRawFd};
    use std::os::unix::net::UnixStream;

    fn stalled(mut reader: impl Read, writer: OwnedFd) {
        let lost = AtomicU64::new(0);
        let line = |number: u64| format!("{number:0>99}\n");
        let mut sent = 0;
        while lost.load(Ordering::Relaxed) < 10 {
            write_counting(writer.as_fd(), &lost, &line(sent));
            sent += 1;
        }
        let whole = sent - 10;
        for number in 0..whole {
            let mut read = [0; 100];
            reader.read_exact(&mut read).expect("read");
            assert_eq!(String::from_utf8_lossy(&read), line(number));
        }
        write_counting(writer.as_fd(), &lost, "heard again\n");
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("read");
        let told = "adit: warning: 10 messages are lost: nobody read standard error in time\n";
        assert_eq!(rest, format!("{told}heard again\n"));
    }

    /// The thread that had something to say waited for ever.
    #[test]
    fn a_reader_that_stalls_loses_lines_and_hears_how_many() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        stalled(reader, writer.into());
        let (reader, writer) = UnixStream::pair().expect("sockets");
        stalled(reader, writer.into());
    }

    /// `poll` says that it can be written, and a line is longer than its room.
    #[test]
    fn a_terminal_that_nobody_reads_keeps_nobody_waiting() {
        let ours = File::options().read(true).write(true).open("/dev/ptmx");
        let mut ours = ours.expect("a terminal");
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        // SAFETY: system calls on a descriptor of ours; the second one makes a descriptor.
        let theirs = unsafe {
            assert_eq!(libc::unlockpt(ours.as_raw_fd()), 0);
            libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags)
        };
        assert!(theirs >= 0, "its other side");
        // SAFETY: a fresh descriptor that nobody else has.
        let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
        let lost = AtomicU64::new(0);
        while lost.load(Ordering::Relaxed) < 10 {
            write_counting(theirs.as_fd(), &lost, &format!("{:0>99}\n", 7));
        }
        let mut read = vec![0; 1 << 16];
        let got = ours.read(&mut read).expect("read");
        assert!(got > 100, "{got}");
        // Its reader is there again.
        let mut told = String::new();
        while !told.contains("heard again") {
            write_counting(theirs.as_fd(), &lost, "heard again\n");
            let got = ours.read(&mut read).expect("read");
            told += &String::from_utf8_lossy(&read[..got]);
        }
        assert!(told.contains(" messages are lost: nobody read"), "{told}");
    }

    #[test]
    fn a_file_gets_all_lines_and_a_long_one_is_cut() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let mut file = File::create(&path).expect("made");
        let lost = AtomicU64::new(0);
        file.write_all(b"before\n").expect("written");
        for _ in 0..100 {
            write_counting(file.as_fd(), &lost, &format!("{}\n", "ä".repeat(4000)));
        }
        let text = std::fs::read_to_string(&path).expect("read");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lost.into_inner()), (101, 0));
        assert!(lines[1..].iter().all(|line| line.len() < LINE_BYTES_MAX));
        assert!(lines[100].len() > 4000 && lines[100].ends_with("ä…"));
    }
}
