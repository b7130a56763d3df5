//! Processes that measure at the same time: each says `ready` before each measurement, and begins
//! when all others are.
//!
//! A client speaks by its stdout, and hears by its stdin. Its last line is its result.

use std::io::{self, BufRead, Write};

const READY: &str = "ready";
const BEGIN: &str = "begin";

/// One client of several.
#[derive(Debug)]
pub(crate) struct Gate {
    /// How many there are.
    pub(crate) clients: u32,
}

impl Gate {
    /// Waits until all are ready.
    pub(crate) fn pass(&self) -> io::Result<()> {
        writeln!(io::stdout(), "{READY}")?;
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        match line.trim_end() == BEGIN {
            true => Ok(()),
            false => Err(io::Error::other("the process that compares has ended")),
        }
    }
}

/// A client, as the process that compares speaks with it.
pub(crate) struct Client<R, W> {
    pub(crate) from: R,
    pub(crate) to: W,
}

/// Lets all clients pass each of their gates together; returns their results.
pub(crate) fn lead<R: BufRead, W: Write>(clients: &mut [Client<R, W>]) -> io::Result<Vec<String>> {
    loop {
        let mut lines = Vec::new();
        for client in &mut *clients {
            let mut line = String::new();
            client.from.read_line(&mut line)?;
            lines.push(line);
        }
        let ready = lines.iter().filter(|line| line.trim_end() == READY).count();
        if ready == 0 {
            return Ok(lines);
        }
        if ready < clients.len() {
            return Err(io::Error::other("one of the clients has ended"));
        }
        for client in &mut *clients {
            writeln!(client.to, "{BEGIN}")?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Client, lead};

    #[test]
    fn clients_begin_together_and_one_that_ended_is_told() {
        let client = |says: &'static str| Client {
            from: says.as_bytes(),
            to: Vec::new(),
        };
        let mut two = [client("ready\nready\na"), client("ready\nready\nb")];
        assert_eq!(lead(&mut two).unwrap(), ["a", "b"]);
        assert_eq!(two[1].to, b"begin\nbegin\n");
        let mut two = [client("ready\nready\na"), client("ready\n")];
        assert!(lead(&mut two).is_err());
    }
}
