//! The disks as QEMU reaches them: an NBD server on Unix sockets, and the power switch.
//!
//! The protocol: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>. The server
//! has its newstyle handshake with `GO`, reads, writes with and without FUA, and flushes.
//!
//! Invariants:
//! 1. No request takes effect once the power is off, except that a write that arrives then counts
//!    as in flight: a cut may keep any of its sectors.
//! 2. A flush or durable write takes up to 3 ms, in which other requests are answered; a cut in
//!    this time finds its effect missing.
//! 3. A flush covers the writes that were answered before the flush was read, and the durable
//!    writes that wait before it.

use super::disk::{Cut, Disk, SECTOR_BYTES};
use super::random::Random;
use crate::process::Outcome;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const OPTION_ABORT: u32 = 2;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;

const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = 1 << 31 | 1;

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

const HAS_FLAGS: u16 = 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const FLAG_FUA: u16 = 1;

const EIO: u32 = 5;
const EINVAL: u32 = 22;

/// Most bytes of one request.
const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Most bytes of an option of the handshake.
const OPTION_BYTES_MAX: u32 = 4096;
/// A flush, or a durable write, takes less.
const FLUSH_US_MAX: u64 = 3000;

/// All disks of the guest, and whether they have power.
pub(super) struct Power {
    state: Mutex<State>,
    /// A connection has ended.
    ended: Condvar,
}

struct State {
    disks: Vec<Disk>,
    /// The number of the next write, on any disk.
    next_write: u64,
    is_off: bool,
    /// So many writes and flushes more are answered.
    answers_left: Option<u64>,
    connections: usize,
    /// Called when the power goes off by itself.
    off: Box<dyn Fn() + Send>,
}

impl State {
    /// Counts a write or flush that arrived; false if the power is off, or goes off now.
    fn has_power_for_one_more(&mut self) -> bool {
        match &mut self.answers_left {
            Some(0) if !self.is_off => {
                self.is_off = true;
                (self.off)();
            }
            Some(left) => *left = left.saturating_sub(1),
            None => {}
        }
        !self.is_off
    }
}

impl Power {
    /// `off` is called when the power goes off by itself.
    pub(super) fn new(disks: Vec<Disk>, off: impl Fn() + Send + 'static) -> Arc<Power> {
        let state = State {
            disks,
            next_write: 1,
            is_off: true,
            answers_left: None,
            connections: 0,
            off: Box::new(off),
        };
        Arc::new(Power {
            state: Mutex::new(state),
            ended: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches the power on, without a limit.
    pub(super) fn on(&self) {
        let mut state = self.state();
        state.is_off = false;
        state.answers_left = None;
    }

    /// Lets the power go off after so many more writes and flushes; `None`: not by itself.
    pub(super) fn off_after(&self, answers: Option<u64>) {
        self.state().answers_left = answers;
    }

    /// Switches the power off.
    pub(super) fn off(&self) {
        self.state().is_off = true;
    }

    /// Cuts all disks. Called when the power is off and QEMU was killed.
    pub(super) fn cut(&self, random: &mut Random) -> Cut {
        let state = self.state();
        assert!(state.is_off, "a cut is without power");
        let ended = self.ended.wait_while(state, |state| state.connections > 0);
        let mut state = ended.unwrap_or_else(PoisonError::into_inner);
        let mut sum = Cut::default();
        for disk in &mut state.disks {
            sum += disk.cut(random);
        }
        sum
    }

    /// Writes the state after a cut to the image files.
    pub(super) fn fold(&self) -> Outcome {
        let words = |error| format!("could not write a disk's image: {error}");
        let mut state = self.state();
        state
            .disks
            .iter_mut()
            .try_for_each(Disk::fold)
            .map_err(words)
    }

    /// Serves a disk at a socket, in threads that last as long as the process.
    pub(super) fn serve(self: &Arc<Power>, disk: usize, socket: &Path) -> Outcome {
        let words = |error| format!("could not listen at {}: {error}", socket.display());
        let listener = UnixListener::bind(socket).map_err(words)?;
        let power = self.clone();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                power.state().connections += 1;
                let power = power.clone();
                thread::spawn(move || {
                    // A killed QEMU ends its connection in the middle of a request: an error.
                    let _ = Connection {
                        power: &power,
                        disk,
                    }
                    .serve(connection);
                    power.state().connections -= 1;
                    power.ended.notify_all();
                });
            }
        });
        Ok(())
    }
}

/// A request that takes some time.
struct Slow {
    cookie: u64,
    work: Work,
}

enum Work {
    Flush {
        below: u64,
    },
    DurableWrite {
        write: u64,
        offset: u64,
        len_bytes: usize,
    },
}

#[derive(Clone, Copy)]
struct Connection<'a> {
    power: &'a Power,
    disk: usize,
}

fn read<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_u16(stream: &mut impl Read) -> io::Result<u16> {
    read(stream).map(u16::from_be_bytes)
}

fn read_u32(stream: &mut impl Read) -> io::Result<u32> {
    read(stream).map(u32::from_be_bytes)
}

fn read_u64(stream: &mut impl Read) -> io::Result<u64> {
    read(stream).map(u64::from_be_bytes)
}

fn refuse<T>(what: &'static str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

fn reply_to_option(stream: &mut UnixStream, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut reply = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    reply.extend(option.to_be_bytes());
    reply.extend(kind.to_be_bytes());
    reply.extend((data.len() as u32).to_be_bytes());
    reply.extend(data);
    stream.write_all(&reply)
}

/// The answer to a request; one `write`, so that answers of two threads do not mix.
fn answer(stream: &Mutex<UnixStream>, cookie: u64, error: u32, data: &[u8]) -> io::Result<()> {
    let mut reply = REPLY_MAGIC.to_be_bytes().to_vec();
    reply.extend(error.to_be_bytes());
    reply.extend(cookie.to_be_bytes());
    reply.extend(data);
    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
    stream.write_all(&reply)
}

impl Connection<'_> {
    fn serve(self, mut stream: UnixStream) -> io::Result<()> {
        let size_bytes = self.power.state().disks[self.disk].size_bytes()?;
        if !shake_hands(&mut stream, size_bytes)? {
            return Ok(());
        }
        let answers = Mutex::new(stream.try_clone()?);
        let (slow, queue) = mpsc::channel();
        thread::scope(|scope| {
            let told = &answers;
            scope.spawn(move || self.do_slowly(queue, told));
            let served = self.requests(&mut stream, size_bytes, &answers, &slow);
            drop(slow);
            served
        })
    }

    fn requests(
        self,
        stream: &mut UnixStream,
        size_bytes: u64,
        answers: &Mutex<UnixStream>,
        slow: &mpsc::Sender<Slow>,
    ) -> io::Result<()> {
        loop {
            if read_u32(stream)? != REQUEST_MAGIC {
                return refuse("a request without its magic number");
            }
            let (flags, kind) = (read_u16(stream)?, read_u16(stream)?);
            let (cookie, offset) = (read_u64(stream)?, read_u64(stream)?);
            let len_bytes = read_u32(stream)?;
            if len_bytes > REQUEST_BYTES_MAX {
                return refuse("a request that is too long");
            }
            let mut bytes = vec![0; len_bytes as usize];
            if kind == WRITE {
                stream.read_exact(&mut bytes)?;
            }
            let end = offset.checked_add(len_bytes.into());
            let is_inside = end.is_some_and(|end| end <= size_bytes)
                && offset.is_multiple_of(SECTOR_BYTES as u64)
                && bytes.len().is_multiple_of(SECTOR_BYTES);
            match kind {
                DISCONNECT => return Ok(()),
                READ | WRITE if !is_inside => answer(answers, cookie, EINVAL, &[])?,
                READ => {
                    let outcome = {
                        let state = self.power.state();
                        if state.is_off {
                            continue;
                        }
                        state.disks[self.disk].read(offset, &mut bytes)
                    };
                    match outcome {
                        Ok(()) => answer(answers, cookie, 0, &bytes)?,
                        Err(_) => answer(answers, cookie, EIO, &[])?,
                    }
                }
                WRITE => {
                    let mut state = self.power.state();
                    let write = state.next_write;
                    state.next_write += 1;
                    state.disks[self.disk].write(write, offset, &bytes);
                    let has_power = state.has_power_for_one_more();
                    drop(state);
                    if !has_power {
                        continue;
                    }
                    if flags & FLAG_FUA == 0 {
                        answer(answers, cookie, 0, &[])?;
                        continue;
                    }
                    let len_bytes = bytes.len();
                    let work = Work::DurableWrite {
                        write,
                        offset,
                        len_bytes,
                    };
                    let _ = slow.send(Slow { cookie, work });
                }
                FLUSH => {
                    let mut state = self.power.state();
                    let below = state.next_write;
                    if state.has_power_for_one_more() {
                        let work = Work::Flush { below };
                        let _ = slow.send(Slow { cookie, work });
                    }
                }
                _ => answer(answers, cookie, EINVAL, &[])?,
            }
        }
    }

    /// Executes slow requests in order.
    fn do_slowly(self, queue: Receiver<Slow>, answers: &Mutex<UnixStream>) {
        let mut random = Random::new(self.disk as u64);
        for Slow { cookie, work } in queue {
            thread::sleep(Duration::from_micros(random.below(FLUSH_US_MAX)));
            {
                let mut state = self.power.state();
                if state.is_off {
                    continue;
                }
                let disk = &mut state.disks[self.disk];
                match work {
                    Work::Flush { below } => disk.flush(below),
                    Work::DurableWrite {
                        write,
                        offset,
                        len_bytes,
                    } => {
                        disk.finish_durable_write(write, offset, len_bytes);
                    }
                }
            }
            // It fails only if QEMU is gone.
            let _ = answer(answers, cookie, 0, &[]);
        }
    }
}

/// The newstyle handshake; whether requests follow.
fn shake_hands(stream: &mut UnixStream, size_bytes: u64) -> io::Result<bool> {
    let mut hello = MAGIC.to_be_bytes().to_vec();
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    stream.write_all(&hello)?;
    let _flags = read_u32(stream)?;
    loop {
        if read_u64(stream)? != OPTION_MAGIC {
            return refuse("an option without its magic number");
        }
        let (option, len_bytes) = (read_u32(stream)?, read_u32(stream)?);
        if len_bytes > OPTION_BYTES_MAX {
            return refuse("an option that is too long");
        }
        stream.read_exact(&mut vec![0; len_bytes as usize])?;
        match option {
            OPTION_GO | OPTION_INFO => {
                let mut export = INFO_EXPORT.to_be_bytes().to_vec();
                export.extend(size_bytes.to_be_bytes());
                export.extend((HAS_FLAGS | SEND_FLUSH | SEND_FUA).to_be_bytes());
                reply_to_option(stream, option, REPLY_INFO, &export)?;
                let mut blocks = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
                for size in [SECTOR_BYTES as u32, 4096, REQUEST_BYTES_MAX] {
                    blocks.extend(size.to_be_bytes());
                }
                reply_to_option(stream, option, REPLY_INFO, &blocks)?;
                reply_to_option(stream, option, REPLY_ACK, &[])?;
                if option == OPTION_GO {
                    return Ok(true);
                }
            }
            OPTION_ABORT => {
                reply_to_option(stream, option, REPLY_ACK, &[])?;
                return Ok(false);
            }
            _ => reply_to_option(stream, option, REPLY_UNSUPPORTED, &[])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Scratch;
    use std::fs::File;
    use std::sync::atomic::{AtomicBool, Ordering};

    const SIZE_BYTES: u64 = 1 << 20;

    /// A client that speaks as QEMU does.
    struct Client {
        stream: UnixStream,
        cookie: u64,
    }

    impl Client {
        fn connect(socket: &Path) -> Client {
            let mut stream = UnixStream::connect(socket).expect("somebody listens");
            let wait = Some(Duration::from_secs(240));
            stream.set_read_timeout(wait).expect("a plain number");
            let hello: [u8; 18] = read(&mut stream).expect("a greeting");
            assert_eq!(hello[..8], *b"NBDMAGIC");
            assert_eq!(hello[8..16], *b"IHAVEOPT");
            let mut words = 3_u32.to_be_bytes().to_vec();
            // An unknown option, then `GO`, both without data.
            for option in [77, OPTION_GO] {
                words.extend(*b"IHAVEOPT");
                words.extend(option.to_be_bytes());
                words.extend(0_u32.to_be_bytes());
            }
            stream.write_all(&words).expect("it listens");
            let mut kinds = Vec::new();
            while kinds.last() != Some(&REPLY_ACK) {
                assert_eq!(read_u64(&mut stream).expect("a reply"), OPTION_REPLY_MAGIC);
                let _option = read_u32(&mut stream).expect("a reply");
                kinds.push(read_u32(&mut stream).expect("a reply"));
                let len_bytes = read_u32(&mut stream).expect("a reply");
                let mut data = vec![0; len_bytes as usize];
                stream.read_exact(&mut data).expect("a reply");
                if data[..] == INFO_EXPORT.to_be_bytes() {
                    assert_eq!(data[2..10], SIZE_BYTES.to_be_bytes());
                }
            }
            assert_eq!(
                kinds,
                [REPLY_UNSUPPORTED, REPLY_INFO, REPLY_INFO, REPLY_ACK]
            );
            Client { stream, cookie: 0 }
        }

        fn send(&mut self, kind: u16, flags: u16, offset: u64, len_bytes: u32, data: &[u8]) {
            self.cookie += 1;
            let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
            request.extend(flags.to_be_bytes());
            request.extend(kind.to_be_bytes());
            request.extend(self.cookie.to_be_bytes());
            request.extend(offset.to_be_bytes());
            request.extend(len_bytes.to_be_bytes());
            request.extend(data);
            self.stream.write_all(&request).expect("it listens");
        }

        /// The error, or 0.
        fn hear(&mut self) -> u32 {
            assert_eq!(read_u32(&mut self.stream).expect("an answer"), REPLY_MAGIC);
            let error = read_u32(&mut self.stream).expect("an answer");
            assert_eq!(read_u64(&mut self.stream).expect("an answer"), self.cookie);
            error
        }

        fn write(&mut self, number: u8, offset: u64, flags: u16) -> u32 {
            self.send(
                WRITE,
                flags,
                offset,
                SECTOR_BYTES as u32,
                &[number; SECTOR_BYTES],
            );
            self.hear()
        }

        fn read(&mut self, offset: u64) -> [u8; SECTOR_BYTES] {
            self.send(READ, 0, offset, SECTOR_BYTES as u32, &[]);
            assert_eq!(self.hear(), 0);
            read(&mut self.stream).expect("what was asked for")
        }
    }

    fn served(scratch: &Scratch) -> (Arc<Power>, Arc<AtomicBool>, Client) {
        let image = scratch.path().join("disk");
        let _ = std::fs::remove_file(&image);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&image);
        let file = file.expect("the scratch folder is ours");
        file.set_len(SIZE_BYTES).expect("a small file");
        let went_off = Arc::new(AtomicBool::new(false));
        let told = went_off.clone();
        let power = Power::new(vec![Disk::new(file)], move || {
            told.store(true, Ordering::SeqCst)
        });
        let socket = scratch.path().join("socket");
        let _ = std::fs::remove_file(&socket);
        power.serve(0, &socket).expect("a short path");
        power.on();
        let client = Client::connect(&socket);
        (power, went_off, client)
    }

    #[test]
    fn what_was_answered_after_a_flush_or_as_a_durable_write_outlives_every_cut() {
        let scratch = Scratch::new("nbd-durable").expect("a folder");
        let mut kept_unflushed = 0;
        for seed in 0..40 {
            let (power, _, mut client) = served(&scratch);
            assert_eq!(client.write(1, 0, 0), 0);
            client.send(FLUSH, 0, 0, 0, &[]);
            assert_eq!(client.hear(), 0);
            assert_eq!(client.write(2, 4096, FLAG_FUA), 0);
            assert_eq!(client.write(3, 8192, 0), 0);
            assert_eq!(client.read(8192)[0], 3);
            drop(client);
            power.off();
            assert_eq!(power.cut(&mut Random::new(seed)).writes, 1);
            power.fold().expect("the image can be written");
            let left = std::fs::read(scratch.path().join("disk")).expect("it is there");
            assert_eq!((left[0], left[4096]), (1, 2), "seed {seed}");
            kept_unflushed += u32::from(left[8192] == 3);
        }
        assert!((1..40).contains(&kept_unflushed), "{kept_unflushed}");
    }

    #[test]
    fn without_power_nothing_is_answered_and_a_write_was_in_flight() {
        let scratch = Scratch::new("nbd-off").expect("a folder");
        let mut kept_in_flight = 0;
        for seed in 0..40 {
            let (power, went_off, mut client) = served(&scratch);
            power.off_after(Some(2));
            assert_eq!(client.write(1, 0, 0), 0);
            assert_eq!(client.write(2, 512, 0), 0);
            assert!(!went_off.load(Ordering::SeqCst));
            client.send(WRITE, FLAG_FUA, 1024, 512, &[3; SECTOR_BYTES]);
            client.send(FLUSH, 0, 0, 0, &[]);
            client.send(READ, 0, 0, 512, &[]);
            let shut = client.stream.shutdown(std::net::Shutdown::Write);
            shut.expect("it is connected");
            let mut rest = Vec::new();
            let end = client.stream.read_to_end(&mut rest);
            end.expect("the server closes what we closed");
            assert!(rest.is_empty(), "an answer without power");
            assert!(went_off.load(Ordering::SeqCst));
            assert_eq!(power.cut(&mut Random::new(seed)).writes, 3);
            power.fold().expect("the image can be written");
            let left = std::fs::read(scratch.path().join("disk")).expect("it is there");
            kept_in_flight += u32::from(left[1024] == 3);
        }
        assert!((1..40).contains(&kept_in_flight), "{kept_in_flight}");
    }

    #[test]
    fn requests_outside_of_the_disk_and_unknown_ones_are_errors() {
        let scratch = Scratch::new("nbd-errors").expect("a folder");
        let (_power, _, mut client) = served(&scratch);
        assert_eq!(client.write(1, SIZE_BYTES, 0), EINVAL);
        assert_eq!(client.write(1, u64::MAX - 511, 0), EINVAL);
        assert_eq!(client.write(1, 100, 0), EINVAL);
        client.send(READ, 0, SIZE_BYTES - 512, 1024, &[]);
        assert_eq!(client.hear(), EINVAL);
        client.send(99, 0, 0, 0, &[]);
        assert_eq!(client.hear(), EINVAL);
        assert_eq!(client.write(1, SIZE_BYTES - 512, 0), 0);
    }
}
