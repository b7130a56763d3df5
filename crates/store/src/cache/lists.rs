//! The owner's lists of frames, doubly linked through an array beside the frames (not in the
//! mapping).
//!
//! A frame is in at most one list per lane. A list's two ends are one sentinel inside [`Links`], so
//! a frame is taken out, or another put in its place, without knowing its list.
//!
//! It knows nothing of flags: which frames belong into which list is the caller's business.

/// Which of a frame's two links a list uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Say, the dirty frames of a blob.
    Data = 0,
    /// Say, the frames of the open transaction, or those that wait for a checkpoint.
    Journal = 1,
}

/// A list made by `Cache::new_list`. Give it back with `Cache::drop_list`; else its ends stay
/// allocated as long as the cache.
#[derive(PartialEq, Eq, Debug)]
pub struct FrameList {
    sentinel: u32,
    lane: Lane,
}

impl FrameList {
    /// The lane whose links it uses.
    pub fn lane(&self) -> Lane {
        self.lane
    }
}

/// A place in a ring: 0 nowhere, SENTINEL | list, or frame number + 1.
type Place = u32;
const SENTINEL: u32 = 1 << 31;

/// Both neighbours of a place; a plain number, so that fresh memory is already right.
#[derive(Clone, Copy)]
struct Link {
    before: Place,
    after: Place,
}

impl Link {
    fn unpack(word: u64) -> Link {
        Link {
            before: word as u32,
            after: (word >> 32) as u32,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.before) | u64::from(self.after) << 32
    }
}

pub(super) struct Links {
    frames: [Vec<u64>; 2],
    sentinels: Vec<u64>,
    free_sentinels: Vec<u32>,
}

impl Links {
    pub(super) fn new(frames: u32) -> Links {
        // Zeroed by the allocator, so only what is used becomes memory.
        let frames = frames as usize;
        Links {
            frames: [vec![0; frames], vec![0; frames]],
            sentinels: Vec::new(),
            free_sentinels: Vec::new(),
        }
    }

    pub(super) fn new_list(&mut self, lane: Lane) -> FrameList {
        let sentinel = match self.free_sentinels.pop() {
            Some(sentinel) => sentinel,
            None => {
                self.sentinels.push(0);
                (self.sentinels.len() - 1) as u32 | SENTINEL
            }
        };
        let alone = Link {
            before: sentinel,
            after: sentinel,
        };
        self.set(lane, sentinel, alone);
        FrameList { sentinel, lane }
    }

    /// The list must be empty.
    pub(super) fn drop_list(&mut self, list: FrameList) {
        assert!(self.first(&list).is_none(), "a list is dropped with frames");
        self.free_sentinels.push(list.sentinel);
    }

    pub(super) fn push_back(&mut self, list: &FrameList, frame: u32) {
        assert!(!self.is_listed(list.lane, frame), "a frame is listed twice");
        let place = frame + 1;
        let end = self.get(list.lane, list.sentinel);
        let link = Link {
            before: end.before,
            after: list.sentinel,
        };
        self.set(list.lane, place, link);
        self.join(list.lane, end.before, place, list.sentinel);
    }

    /// Takes a frame out of its list, if it is in one.
    pub(super) fn unlink(&mut self, lane: Lane, frame: u32) {
        let link = self.get(lane, frame + 1);
        if link.after == 0 {
            return;
        }
        self.update(lane, link.before, |before| before.after = link.after);
        self.update(lane, link.after, |after| after.before = link.before);
        self.frames[lane as usize][frame as usize] = 0;
    }

    /// Puts `new`, which is in no list, where `old` is, in each lane.
    pub(super) fn replace(&mut self, old: u32, new: u32) {
        for lane in [Lane::Data, Lane::Journal] {
            let link = self.get(lane, old + 1);
            if link.after == 0 {
                continue;
            }
            self.frames[lane as usize][old as usize] = 0;
            self.set(lane, new + 1, link);
            self.join(lane, link.before, new + 1, link.after);
        }
    }

    pub(super) fn is_listed(&self, lane: Lane, frame: u32) -> bool {
        self.frames[lane as usize][frame as usize] != 0
    }

    pub(super) fn first(&self, list: &FrameList) -> Option<u32> {
        frame_at(self.get(list.lane, list.sentinel).after)
    }

    pub(super) fn after(&self, lane: Lane, frame: u32) -> Option<u32> {
        frame_at(self.get(lane, frame + 1).after)
    }

    fn join(&mut self, lane: Lane, before: Place, place: Place, after: Place) {
        self.update(lane, before, |link| link.after = place);
        self.update(lane, after, |link| link.before = place);
    }

    fn get(&self, lane: Lane, place: Place) -> Link {
        Link::unpack(match place & SENTINEL {
            0 => self.frames[lane as usize][(place - 1) as usize],
            _ => self.sentinels[(place & !SENTINEL) as usize],
        })
    }

    fn set(&mut self, lane: Lane, place: Place, link: Link) {
        let word = link.pack();
        match place & SENTINEL {
            0 => self.frames[lane as usize][(place - 1) as usize] = word,
            _ => self.sentinels[(place & !SENTINEL) as usize] = word,
        }
    }

    fn update(&mut self, lane: Lane, place: Place, change: impl FnOnce(&mut Link)) {
        let mut link = self.get(lane, place);
        change(&mut link);
        self.set(lane, place, link);
    }
}

fn frame_at(place: Place) -> Option<u32> {
    (place & SENTINEL == 0).then(|| place.wrapping_sub(1))
}
