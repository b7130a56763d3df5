//! What a request is answered with, whoever asks: the process itself or, through the socket,
//! another one.

use super::message::{Answer, ENTRIES_MAX, Request};
use adit_base::Result;
use adit_fs::{At, Credentials, Follow, Fs};
use adit_reactor::Engine;

/// Runs one bounded operation.
pub(super) fn answer(engine: &Engine<Fs>, request: &Request) -> Result<Answer> {
    // Who may ask could open the image as well, and with it whatever is in it.
    let who = &Credentials::process();
    engine.run(|fs| async move {
        Ok(match request {
            Request::Stat { path, follow } => {
                let follow = if *follow { Follow::Yes } else { Follow::No };
                Answer::Stat(fs.stat(At::root(who, path), follow).await?)
            }
            Request::List {
                path,
                cookie,
                attributes,
            } => {
                let at = At::root(who, path);
                Answer::List(fs.list(at, *cookie, ENTRIES_MAX, *attributes).await?)
            }
            Request::ReadLink { path } => {
                Answer::ReadLink(fs.read_link(At::root(who, path)).await?)
            }
            Request::Info => Answer::Info(fs.store().info().await?),
            Request::StatFs => Answer::StatFs(fs.statfs().await?),
            Request::Open { cookie } => Answer::Open(fs.open_descriptors(*cookie, ENTRIES_MAX)),
        })
    })
}
