//! What a request is answered with, whoever asks: the process itself or, through the socket,
//! another one.

use super::message::{Answer, ENTRIES_MAX, Request};
use crate::open_volume::OpenVolume;
use adit_base::Result;
use adit_fs::{Credentials, Follow, Fs};
use adit_reactor::Engine;
use adit_server::perform::PerformVolume;
use adit_wire::calls::{Info, List, OpenDescriptors, Place, ReadLink, Space, Stat};

/// What a look is asked of.
pub(super) trait Asked {
    fn call<'a, C: PerformVolume<'a> + Send>(
        &'a self,
        who: &'a Credentials,
        call: C,
    ) -> Result<C::Reply>;
}

impl Asked for Engine<Fs> {
    fn call<'a, C: PerformVolume<'a> + Send>(
        &'a self,
        who: &'a Credentials,
        call: C,
    ) -> Result<C::Reply> {
        self.run(move |fs| call.perform(fs, who))
    }
}

impl Asked for OpenVolume {
    fn call<'a, C: PerformVolume<'a> + Send>(
        &'a self,
        who: &'a Credentials,
        call: C,
    ) -> Result<C::Reply> {
        OpenVolume::call(self, who, call)
    }
}

/// Runs one bounded operation.
pub(super) fn answer(asked: &impl Asked, request: &Request) -> Result<Answer> {
    // Who may ask could open the image as well, and with it whatever is in it.
    let who = &Credentials::process();
    Ok(match request {
        Request::Stat { path, follow } => {
            let place = Place::root(path);
            let follow = if *follow { Follow::Yes } else { Follow::No };
            Answer::Stat(asked.call(who, Stat { place, follow })?)
        }
        Request::List {
            path,
            cookie,
            attributes,
        } => Answer::List(asked.call(
            who,
            List {
                place: Place::root(path),
                cookie: *cookie,
                entries_max: ENTRIES_MAX as u32,
                attributes: *attributes,
            },
        )?),
        Request::ReadLink { path } => {
            let place = Place::root(path);
            Answer::ReadLink(asked.call(who, ReadLink { place })?)
        }
        Request::Info => Answer::Info(asked.call(who, Info {})?),
        Request::StatFs => Answer::StatFs(asked.call(who, Space {})?),
        Request::Open { cookie } => {
            let (cookie, max) = (*cookie, ENTRIES_MAX as u32);
            Answer::Open(asked.call(who, OpenDescriptors { cookie, max })?)
        }
    })
}
