//! `adit ctl`: a server's sessions and pollers.

use crate::arguments::{Ctl, VolumeArguments};
use crate::output;
use adit::{ANY_VOLUME, Address, Volume};
use serde::Serialize;
use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

#[derive(Serialize)]
struct SessionLine {
    session: u64,
    /// None: it has no number in the server's pid namespace.
    pid: Option<u32>,
    uid: u32,
    volume: String,
    files: u32,
    poller: u32,
    messages: u64,
}

#[derive(Serialize)]
struct ServerLines {
    pid: u32,
    pollers: u32,
    /// Pollers that work: as many as the load needs.
    running: u32,
    sessions: Vec<SessionLine>,
}

/// The address of a server for a session that is about the server: without a name, whichever of
/// its volumes leads there.
fn of_any_volume(address: &str) -> Cow<'_, str> {
    match Address::parse(address) {
        Address::Served(socket) if Path::new(socket).exists() => {
            format!("{address},{ANY_VOLUME}").into()
        }
        _ => address.into(),
    }
}

/// Shows the sessions of a server, or moves one.
pub(crate) fn ctl(arguments: &Ctl, options: &VolumeArguments) -> adit::Result<()> {
    let volume: Volume = options.open(&of_any_volume(&arguments.volume))?;
    if let [session, poller] = arguments.move_session[..] {
        let poller = u32::try_from(poller).unwrap_or(u32::MAX);
        return volume.move_session(session, poller);
    }
    let state = volume.server_state()?;
    // Not this command's own.
    let others = state.sessions.into_iter().filter(|session| !session.is_own);
    let lines = others.map(|session| SessionLine {
        session: session.number,
        pid: session.pid,
        uid: session.uid,
        volume: session.volume,
        files: session.files,
        poller: session.poller,
        messages: session.served,
    });
    let mut sessions: Vec<SessionLine> = lines.collect();
    sessions.sort_by_key(|line| line.session);
    let lines = ServerLines {
        pid: state.pid,
        pollers: state.pollers,
        running: state.running,
        sessions,
    };
    let mut out = output::stdout();
    if arguments.json {
        return output::json(&mut out, &lines);
    }
    let ServerLines {
        pid,
        pollers,
        running,
        sessions,
    } = lines;
    writeln!(out, "server {pid}: {running} of {pollers} pollers work")?;
    let heads = ("SESSION", "PID", "UID", "POLLER", "FILES", "MESSAGES");
    let (session, process, uid, poller, files, messages) = heads;
    writeln!(
        out,
        "{session:>7} {process:>8} {uid:>6} {poller:>6} {files:>5} {messages:>12} VOLUME"
    )?;
    for line in sessions {
        let process = line.pid.map_or("-".to_owned(), |pid| pid.to_string());
        writeln!(
            out,
            "{:>7} {process:>8} {:>6} {:>6} {:>5} {:>12} {}",
            line.session, line.uid, line.poller, line.files, line.messages, line.volume
        )?;
    }
    Ok(())
}
