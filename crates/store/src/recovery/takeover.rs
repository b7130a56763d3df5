//! Decides about the mappings that other openings of the volume left, or still use.
//!
//! The rule: *a mapping of this volume that is not provably obsolete is taken over completely, or
//! the volume isn't opened.* [`judge`] is the rule as a table; a test goes through all cases.
//!
//! | mapping | image | then |
//! |---|---|---|
//! | of the superblock's opening; its owner lives | any | busy |
//! | of another opening, by somebody who may write the image; its owner lives | the same | busy |
//! | of the superblock's opening, which wasn't closed; or of one that it was taking over | the same, as new | take over |
//! | … | another file or device | refuse: moved, or a copy |
//! | … | older than the mapping | refuse: an older image was put back |
//! | … cannot be read, or understood, or be trusted | any | refuse |
//! | … with nothing unsaved in it | any | not needed |
//! | of an earlier opening that the superblock's one followed | the same | obsolete: delete |
//! | of a later opening than the image knows, by somebody who may write the image | the same | refuse: an older image was put back |
//! | any other | | of another volume or user: leave alone |
//!
//! A look passes by a mapping of another file or device, and shows the copy.
//!
//! "Of the superblock's opening" is proved by the seal of the name (`cache/name.rs`). Whether an
//! image is older shows in the superblock's sequence number and in the journal's horizon, which
//! `recovery/replay.rs` checks. With [`Takeover`] the user decides otherwise.
//!
//! An opening that is killed while it takes over leaves a mapping, too, and so does the next one.
//! Until the takeover is complete, its header names the mappings that it copies, and it holds
//! nothing else that was acknowledged. While exactly those are here and are taken over, it is
//! obsolete.

use crate::cache::tail::TailMemory;
use crate::cache::{
    Abandoned, AppliedUpTo, Content, Denied, Header, Leftover, ParsedName, Purpose, Unsaved,
};
use crate::format::{STATE_CLEAN, STATE_TAKING_OVER, Superblock};
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result, from_rustix};
use adit_block::{Device, Identity};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};

/// The policy for data that a killed process left in shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Takeover {
    /// All of it is taken over, or the volume isn't opened (`EOWNERDEAD`).
    #[default]
    Complete,
    /// All of it is taken over, and this image counts as the one that was open, moved to another
    /// file or device.
    Adopt,
    /// The volume is opened as after a power cut, and the data is left for the image that it
    /// belongs to: this one is a copy.
    Leave,
    /// The volume is opened as after a power cut, and the data is deleted.
    Discard,
}

/// The opening before this one, if it closed the volume, or if its process died and its mapping was
/// taken over completely: of its transactions exactly those up to certain numbers are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// The epoch in which it had the volume.
    pub epoch: u64,
    /// The last transactions that it applied; all if it closed the volume.
    pub applied: AppliedUpTo,
}

impl Predecessor {
    /// It closed the volume: all that it applied is here.
    pub(crate) fn closed(epoch: u64) -> Predecessor {
        Predecessor {
            epoch,
            applied: AppliedUpTo::ALL,
        }
    }

    fn of(dead: &Abandoned) -> Option<Predecessor> {
        Some(Predecessor {
            epoch: dead.epoch(),
            applied: AppliedUpTo::of(&dead.applied()?),
        })
    }
}

/// The facts for the judge.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// Sealed by the superblock's opening.
    ours: bool,
    /// Its epoch beside the superblock's.
    epoch: Ordering,
    same_image: bool,
    /// Its maker may write the image.
    trusted: bool,
    closed: bool,
    taking_over: bool,
    content: Kind,
}

impl Facts {
    /// True if the verdict on a dead owner's mapping depends on its content.
    fn may_matter(&self) -> bool {
        self.ours || self.same_image && self.trusted && self.epoch == Ordering::Greater
    }

    /// True if the superblock's state of the volume needs this mapping.
    fn counts(&self) -> bool {
        match self.epoch {
            Ordering::Equal => !self.closed,
            Ordering::Less => self.taking_over,
            Ordering::Greater => true,
        }
    }
}

/// The content of a mapping, for the judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Live,
    Unreadable,
    Strange,
    Claim,
    OtherBoot,
    Empty,
    Unsaved {
        /// It relies on a superblock that the image doesn't have.
        newer: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Busy,
    TakeOver,
    /// Of no use to anybody.
    Obsolete,
    Elsewhere,
    Refuse(Why),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Moved,
    Older,
    Unreadable,
    Strange,
    Untrusted,
}

/// The rule; see the file header.
fn judge(facts: Facts) -> Verdict {
    use Kind::{Claim, Empty, Live, OtherBoot, Strange, Unreadable};
    let Facts {
        ours, same_image, ..
    } = facts;
    let counts = facts.counts();
    match facts.content {
        Live if ours || same_image && facts.trusted => Verdict::Busy,
        Live => Verdict::Elsewhere,
        // Memory of another boot, and a dead process's claim, are void.
        Claim | OtherBoot if ours || same_image && facts.trusted => Verdict::Obsolete,
        Claim | OtherBoot => Verdict::Elsewhere,
        _ if !ours => match facts.content {
            Empty => Verdict::Elsewhere,
            _ if same_image && facts.trusted && facts.epoch == Ordering::Greater => {
                Verdict::Refuse(Why::Older)
            }
            _ => Verdict::Elsewhere,
        },
        _ if !counts && same_image => Verdict::Obsolete,
        _ if !counts => Verdict::Elsewhere,
        Empty if same_image => Verdict::Obsolete,
        Empty => Verdict::Elsewhere,
        Unreadable => Verdict::Refuse(Why::Unreadable),
        _ if !facts.trusted => Verdict::Refuse(Why::Untrusted),
        Strange => Verdict::Refuse(Why::Strange),
        Kind::Unsaved { .. } if !same_image => Verdict::Refuse(Why::Moved),
        Kind::Unsaved { newer } if newer || facts.epoch == Ordering::Greater => {
            Verdict::Refuse(Why::Older)
        }
        Kind::Unsaved { .. } => Verdict::TakeOver,
    }
}

/// The decision about the mappings found.
#[derive(Debug, Default)]
pub(crate) struct Resolution {
    /// To be taken over, by epoch.
    pub(crate) take: Vec<Abandoned>,
    /// Provably useless, even if this opening fails.
    obsolete: Vec<Useless>,
    /// Of the superblock's opening, which wasn't closed, and with nothing in them that isn't on the
    /// device: if its journal reaches the horizon that each goes with.
    saved: Vec<(Option<Predecessor>, u64)>,
    /// To be deleted once the volume is open, since the user said so.
    discarded: Vec<Useless>,
    /// Of the superblock's opening, which wasn't closed, but of another boot; described.
    other_boot: Vec<String>,
    found_last: FoundLast,
}

/// The mappings of the superblock's opening, which wasn't closed, or of those that it was taking
/// over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FoundLast {
    /// True if there is a mapping of this boot, with any content and verdict.
    pub(crate) memory: bool,
    /// A claim: it ended before it had a mapping, or had none.
    pub(crate) claim: bool,
}

/// A mapping to be deleted, and its content: readers in other processes may have it mapped, so it
/// is ended first.
type Useless = (PathBuf, Option<Abandoned>);

impl Resolution {
    /// That of the opening with this epoch.
    pub(crate) fn of_epoch(&self, epoch: u64) -> Option<&Abandoned> {
        self.take.iter().find(|dead| dead.epoch() == epoch)
    }

    /// The opening before this one, if there is one and its progress is known. `end`: of the
    /// journal, after recovery.
    pub(crate) fn predecessor(&self, end: u64) -> Option<Predecessor> {
        match (&self.take[..], &self.saved[..]) {
            ([dead], _) => Predecessor::of(dead),
            ([], [(predecessor, horizon)]) if *horizon <= end => *predecessor,
            _ => None,
        }
    }

    /// The sum of seals of these mappings, for the header of the opening that takes them over.
    pub(crate) fn seals(&self) -> u64 {
        self.take
            .iter()
            .fold(0, |sum, dead| sum.wrapping_add(seal_of(dead)))
    }

    fn note(&mut self, known: &FoundMapping) {
        let facts = &known.facts;
        if !facts.ours || !facts.counts() {
            return;
        }
        match facts.content {
            Kind::Claim => self.found_last.claim = true,
            Kind::OtherBoot if !facts.same_image => {}
            Kind::OtherBoot if known.unsaved.is_some_and(|unsaved| unsaved.is_none()) => {}
            Kind::OtherBoot => self.other_boot.push(known.described()),
            // A copy doesn't count: its original is looked for, too.
            _ => self.found_last.memory |= !known.is_copy(),
        }
    }

    /// Copies that killed openings left of others of these are not taken over once more.
    fn drop_copies(&mut self) {
        let mut seals = 0u64;
        for dead in std::mem::take(&mut self.take) {
            if seals != 0 && dead.copy_of() == seals {
                self.obsolete.push((dead.path().to_path_buf(), Some(dead)));
            } else {
                seals = seals.wrapping_add(seal_of(&dead));
                self.take.push(dead);
            }
        }
    }

    /// True if one of these is a copy, perhaps incomplete, that a killed opening made of others.
    pub(crate) fn takes_copies(&self) -> bool {
        self.take.iter().any(|dead| dead.copy_of() != 0)
    }

    pub(crate) fn found_last(&self) -> FoundLast {
        self.found_last
    }

    /// Directories of the mappings that are to be taken over.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let parents = self.take.iter().filter_map(|dead| dead.path().parent());
        parents.map(Path::to_path_buf).collect()
    }

    /// Lies memory that goes with this opening on the file system of a directory?
    pub(crate) fn lies_on_that_of(&self, directory: &Path) -> bool {
        let device = |path: &Path| rustix::fs::stat(path).ok().map(|stat| stat.st_dev);
        let Some(own) = device(directory) else {
            return false;
        };
        let taken = self.take.iter().map(Abandoned::path);
        let discarded = self.discarded.iter().map(|(path, _)| path.as_path());
        taken.chain(discarded).any(|path| device(path) == Some(own))
    }

    /// Logs the memory of other boots that is deleted.
    pub(crate) fn tell_of_other_boots(&mut self, volume: &str) {
        for described in std::mem::take(&mut self.other_boot) {
            tracing::warn!(
                volume,
                "memory of another boot of the machine is of no use and is deleted: {described}"
            );
        }
    }

    /// How much is to be taken over, and from where.
    pub(crate) fn described(&self) -> Option<String> {
        let told = |dead: &Abandoned| format!("{} in {}", dead.unsaved(), dead.path().display());
        let all: Vec<String> = self.take.iter().map(told).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Deletes useless mappings before the superblock gets another secret: the next opening could
    /// not identify them. A mapping that stays is harmless.
    pub(crate) fn delete_obsolete(&mut self) -> Result<()> {
        delete_all(std::mem::take(&mut self.obsolete))
    }

    /// Deletes the mappings that the user discarded, after the volume was opened without them.
    pub(crate) fn delete_discarded(&mut self) -> Result<()> {
        delete_all(std::mem::take(&mut self.discarded))
    }
}

fn seal_of(dead: &Abandoned) -> u64 {
    let name = dead.path().file_name().and_then(|name| name.to_str());
    name.and_then(ParsedName::parse)
        .map_or(0, |name| name.seal())
}

fn delete_all(useless: Vec<Useless>) -> Result<()> {
    for (path, abandoned) in useless {
        abandoned.map_or(Ok(()), |abandoned| abandoned.end())?;
        TailMemory::remove_left(&path);
        if let Err(errno) = rustix::fs::unlink(&path).map_err(from_rustix)
            && errno != Errno::NOENT
        {
            let path = path.display();
            tracing::info!(%path, %errno, "memory of an earlier opening stays");
        }
    }
    Ok(())
}

/// Decides about all mappings of a volume, or says why it can't be opened.
pub(crate) fn resolve(
    found: Vec<Leftover>,
    superblock: &Superblock,
    device: &dyn Device,
    takeover: Takeover,
    purpose: Purpose,
) -> Result<Resolution> {
    let mut resolution = Resolution::default();
    let mut refused = Vec::new();
    for leftover in found {
        let path = leftover.path.clone();
        let known = FoundMapping::of(leftover, superblock, device)
            .map_err(|error| error.context(format_args!("judge {}", path.display())))?;
        let discards = matches!(takeover, Takeover::Leave | Takeover::Discard);
        resolution.note(&known);
        let verdict = match judge(known.facts) {
            Verdict::Busy if may_pass(&known, takeover, purpose, &device.identity()) => {
                tracing::warn!(
                    volume = device.name(),
                    "this is a copy of a volume that is in use by {}; the copy is shown",
                    known.owner()
                );
                Verdict::Elsewhere
            }
            Verdict::TakeOver | Verdict::Refuse(_) if discards => {
                // A mapping of another image isn't this one's to delete; a look deletes nothing.
                let deletes = takeover == Takeover::Discard
                    && known.facts.same_image
                    && purpose == Purpose::TakeOver;
                let what = match (deletes, purpose) {
                    (true, _) => "discarded",
                    (false, Purpose::TakeOver) => "left where it is",
                    (false, Purpose::Look) => "left where it is, and not shown",
                };
                let volume = device.name();
                tracing::warn!(volume, "unsaved data is {what}: {}", known.described());
                if deletes {
                    resolution.discarded.push((path, known.abandoned));
                    continue;
                }
                Verdict::Elsewhere
            }
            Verdict::Refuse(Why::Moved) if takeover == Takeover::Adopt => match known.facts {
                Facts {
                    content: Kind::Unsaved { newer: true },
                    ..
                } => Verdict::Refuse(Why::Older),
                _ => Verdict::TakeOver,
            },
            // It belongs to another image, with any content.
            Verdict::Refuse(_) if known.of_another_image && purpose == Purpose::Look => {
                tracing::warn!(
                    volume = device.name(),
                    "it is a copy, or was moved: data that was not saved is not shown here: {}",
                    known.described()
                );
                Verdict::Elsewhere
            }
            verdict => verdict,
        };
        match verdict {
            Verdict::Busy => {
                return Err(Error::with(Errno::BUSY, in_use(&known, &device.identity())));
            }
            Verdict::Refuse(why) => refused.push((why, known)),
            Verdict::TakeOver => resolution.take.extend(known.abandoned),
            Verdict::Obsolete => {
                if let Some(dead) = known.saved(superblock).filter(|_| !discards) {
                    (resolution.saved).push((Predecessor::of(dead), dead.horizon()));
                }
                resolution.obsolete.push((path, known.abandoned));
            }
            Verdict::Elsewhere if known.is_not_believed() => tracing::warn!(
                volume = device.name(),
                "user {} left a file that says that the volume was open after this image was written. \
                 That user is neither root, nor this user, nor the image's owner, so it isn't \
                 believed: {}. If an older copy was put back, put the newer image back",
                known.uid,
                path.display()
            ),
            Verdict::Elsewhere => {
                let path = path.display();
                tracing::debug!(%path, "not of the volume's last opening: left alone");
            }
        }
    }
    if let [(why, known), others @ ..] = &refused[..] {
        let others = others.iter().map(|(_, known)| known.described());
        let good = resolution.described();
        let good = good.map(|good| format!("{good}, which could be taken over"));
        return Err(refusal(
            *why,
            known,
            &others.chain(good).collect::<Vec<_>>(),
        ));
    }
    resolution.take.sort_by_key(Abandoned::epoch);
    resolution.drop_copies();
    Ok(resolution)
}

/// True if the volume may be opened although another process has the same opening of it. A look at
/// a copy is allowed; an opening for writing only if it is certainly a copy and the user says so.
fn may_pass(known: &FoundMapping, takeover: Takeover, purpose: Purpose, image: &Identity) -> bool {
    match purpose {
        Purpose::Look => !known.facts.same_image,
        Purpose::TakeOver => {
            matches!(takeover, Takeover::Leave | Takeover::Discard) && known.is_certainly_not(image)
        }
    }
}

/// The process that has the volume open, and the ways out where this is perhaps a copy of it.
fn in_use(known: &FoundMapping, image: &Identity) -> String {
    let mut what = format!("in use by {} ({})", known.owner(), known.path.display());
    if known.of_another_image {
        what += ", which has it from another file or device. If this is a copy, it can be looked at; \
                 to open it, ";
        what += if known.is_certainly_not(image) {
            "choose takeover = leave"
        } else {
            "close the volume there first"
        };
    }
    what
}

/// A mapping, and the facts about it.
struct FoundMapping {
    facts: Facts,
    /// Its name says that it belongs to another file or device.
    of_another_image: bool,
    path: PathBuf,
    uid: u32,
    pid: Option<u32>,
    image: Option<Identity>,
    address: Option<String>,
    unsaved: Option<Unsaved>,
    problem: Option<Error>,
    abandoned: Option<Abandoned>,
}

impl FoundMapping {
    fn is_copy(&self) -> bool {
        let dead = self.abandoned.as_ref();
        dead.is_some_and(|dead| dead.copy_of() != 0)
    }

    fn of(
        leftover: Leftover,
        superblock: &Superblock,
        device: &dyn Device,
    ) -> Result<FoundMapping> {
        let Leftover {
            path,
            name,
            uid,
            content,
        } = leftover;
        let image = device.identity();
        let sealed = name.is_some_and(|name| name.is_sealed_by(superblock.opening));
        let ours = sealed || planted(Bug::ForgedName);
        let trusted = uid == 0
            || uid == rustix::process::geteuid().as_raw()
            || Some(uid) == device.owner()
            || planted(Bug::UntrustedMaker);
        // A name of another form may be another version's; then nothing else is known of it.
        let ours = ours || name.is_none() && trusted;
        let mut known = FoundMapping {
            facts: Facts {
                ours,
                epoch: name.map_or(Ordering::Equal, |name| name.epoch.cmp(&superblock.epoch)),
                same_image: name
                    .is_some_and(|name| name.is_of(&image) || planted(Bug::StrangersMapping)),
                trusted,
                closed: superblock.state & STATE_CLEAN != 0,
                taking_over: superblock.state & STATE_TAKING_OVER != 0,
                content: Kind::Strange,
            },
            of_another_image: name.is_some_and(|name| !name.is_of(&image)),
            path,
            uid,
            pid: None,
            image: None,
            address: None,
            unsaved: None,
            problem: None,
            abandoned: None,
        };
        let header = match &content {
            Content::Live(header) => header.as_deref(),
            Content::Dead(dead) => Some(&dead.header),
            Content::Unreadable(_) | Content::Strange(_) => None,
        };
        if let Some(header) = header {
            known.pid = Some(header.pid);
            known.image = header.image;
            known.address = Some(header.address.clone());
        }
        known.facts.content = match content {
            Content::Live(_) if planted(Bug::LivingOwner) => Kind::Claim,
            Content::Live(_) => Kind::Live,
            Content::Unreadable(error) | Content::Strange(error)
                if planted(Bug::UnreadableMapping) =>
            {
                known.problem = Some(error);
                Kind::Empty
            }
            Content::Unreadable(error) => {
                known.problem = Some(error);
                Kind::Unreadable
            }
            Content::Strange(error) => {
                known.problem = Some(error);
                Kind::Strange
            }
            Content::Dead(dead) if !is_of(&dead.header, name.as_ref(), superblock, ours) => {
                let what = "its header doesn't fit its name";
                known.problem = Some(Error::with(Errno::INVAL, what));
                Kind::Strange
            }
            Content::Dead(dead) if dead.header.frames == 0 => Kind::Claim,
            Content::Dead(dead) if !dead.is_of_this_boot()? => {
                if known.facts.may_matter() && known.facts.counts() && trusted {
                    let abandoned = dead.load(known.path.clone()).ok();
                    known.unsaved = abandoned.map(|abandoned| abandoned.unsaved());
                }
                Kind::OtherBoot
            }
            // Its content isn't needed: nothing of it is read.
            Content::Dead(_) if !known.facts.may_matter() => Kind::Empty,
            Content::Dead(_) if !trusted => Kind::Unsaved { newer: false },
            Content::Dead(dead) => {
                let sequence = dead.header.sequence;
                match dead.load(known.path.clone()) {
                    Ok(abandoned) => {
                        let unsaved = abandoned.unsaved();
                        known.unsaved = Some(unsaved);
                        known.abandoned = Some(abandoned);
                        if unsaved.is_none() && !TailMemory::any_left(&known.path)? {
                            Kind::Empty
                        } else {
                            Kind::Unsaved {
                                // Each change is written to both places, under two numbers.
                                newer: sequence > superblock.sequence + 1
                                    && !planted(Bug::OlderImage),
                            }
                        }
                    }
                    // Of a mapping that says impossible things.
                    Err(error) if matches!(error.errno(), Errno::UCLEAN | Errno::INVAL) => {
                        known.problem = Some(error);
                        Kind::Strange
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(known)
    }

    /// A mapping of the superblock's opening, which wasn't closed, with nothing unsaved: all that
    /// its owner applied is on the device, unless the image is older than it.
    fn saved(&self, superblock: &Superblock) -> Option<&Abandoned> {
        let facts = &self.facts;
        let counts = facts.ours && facts.same_image && facts.trusted && !facts.closed;
        let last = facts.epoch == Ordering::Equal && facts.content == Kind::Empty;
        let dead = self.abandoned.as_ref().filter(|_| counts && last)?;
        (dead.sequence() <= superblock.sequence + 1).then_some(dead)
    }

    /// True if its image is certainly another file, and not another way to this one.
    fn is_certainly_not(&self, image: &Identity) -> bool {
        (self.image).is_some_and(|other| image.is_certainly_not(&other))
    }

    /// True if it claims that an older image was put back, but its owner may not write the image.
    fn is_not_believed(&self) -> bool {
        let Facts {
            ours,
            same_image,
            trusted,
            epoch,
            content,
            ..
        } = self.facts;
        let says_so = same_image && epoch == Ordering::Greater;
        says_so && !ours && !trusted && !matches!(content, Kind::Live | Kind::Claim)
    }

    /// "process 12 of user 1000".
    fn owner(&self) -> String {
        match self.pid {
            Some(pid) => format!("process {pid} of user {}", self.uid),
            None => format!("a process of user {}", self.uid),
        }
    }

    /// How much it is, whose, of which volume, and where.
    fn described(&self) -> String {
        let unsaved = match &self.unsaved {
            Some(unsaved) => unsaved.to_string(),
            None => "an unknown amount".into(),
        };
        let address = match self.address.as_deref() {
            Some(address) if !address.is_empty() => format!(", of {address}"),
            _ => String::new(),
        };
        format!(
            "{unsaved}, left by {}{address}, in {}",
            self.owner(),
            self.path.display()
        )
    }
}

/// True if the header agrees with the name.
fn is_of(header: &Header, name: Option<&ParsedName>, superblock: &Superblock, ours: bool) -> bool {
    name.is_some_and(|name| {
        header.volume_id == name.volume_id
            && header.epoch == name.epoch
            && header.image.is_some_and(|image| name.is_of(&image))
            && (!ours || header.opening == superblock.opening)
    })
}

/// The error: the obstacle, and the remedies. `beside`: other data that a remedy would give up.
fn refusal(why: Why, known: &FoundMapping, beside: &[String]) -> Error {
    let described = known.described();
    let problem = known.problem.as_ref().map_or("", |error| error.what());
    let uid = known.uid;
    let mut what = match why {
        Why::Moved => format!(
            "unsaved data of this volume belongs to another file or device: {described}. If this is a \
             copy, open the original first, or this one with takeover = leave; if the volume was moved \
             here, takeover = adopt"
        ),
        Why::Older => older(&described),
        Why::Unreadable => format!(
            "unsaved data of this volume can't be read ({problem}): {described}. {}; or, once that process \
             has ended for sure, without that data: takeover = discard",
            Denied::of(uid).way()
        ),
        Why::Strange => format!(
            "unsaved data of this volume can't be used ({problem}): {described}. Open it with the program \
             that left it, or without that data: takeover = discard"
        ),
        Why::Untrusted => format!(
            "unsaved data of this volume was left by user {uid}, who is neither root, nor this user, nor \
             the image's owner: {described}. Open it as user {uid}; or, if that user had no business with \
             the volume, without that data: takeover = discard"
        ),
    };
    if known.of_another_image && why != Why::Moved {
        what +=
            ". It belongs to another file or device: if this is a copy of that, takeover = leave";
    }
    if !beside.is_empty() {
        // Another image, or a newer one, needs it.
        let is_removable = !known.of_another_image && why != Why::Older;
        let beside = beside.join("; ");
        what = if is_removable {
            format!(
                "{what}. But discard and leave open the volume without this data, too: {beside}. To be \
                 without the first only: adit mappings --remove {}",
                known.path.display()
            )
        } else {
            format!("{what}. Beside it: {beside}")
        };
    }
    Error::with(Errno::OWNERDEAD, what)
}

/// The message of a refusal if the image is older than the mapping.
pub(crate) fn older(described: &str) -> String {
    format!(
        "the image is older than unsaved data of this volume: {described}. An older copy was put back, \
         or the device lost writes. Put the newer image back; or open this one without that data: \
         takeover = discard, or leave"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row of the table in the file header, said in another way, and all combinations of
    /// facts.
    #[test]
    fn exactly_one_row_of_the_table_fits_each_mapping() {
        let bools = [false, true];
        let contents = [
            Kind::Live,
            Kind::Unreadable,
            Kind::Strange,
            Kind::Claim,
            Kind::OtherBoot,
            Kind::Empty,
            Kind::Unsaved { newer: false },
            Kind::Unsaved { newer: true },
        ];
        let epochs = [Ordering::Less, Ordering::Equal, Ordering::Greater];
        let mut cases = 0;
        for content in contents {
            for epoch in epochs {
                for bits in 0..32 {
                    let bit = |at: usize| bools[bits >> at & 1];
                    let facts = Facts {
                        ours: bit(0),
                        epoch,
                        same_image: bit(1),
                        trusted: bit(2),
                        closed: bit(3),
                        taking_over: bit(4),
                        content,
                    };
                    check(facts);
                    cases += 1;
                }
            }
        }
        assert_eq!(cases, 8 * 3 * 32);
    }

    fn check(facts: Facts) {
        let Facts {
            ours, same_image, ..
        } = facts;
        let later = facts.epoch == Ordering::Greater;
        let unsaved = matches!(facts.content, Kind::Unsaved { .. });
        let newer = facts.content == Kind::Unsaved { newer: true };
        let secret = matches!(facts.content, Kind::Unreadable | Kind::Strange);
        let open = facts.epoch == Ordering::Equal && !facts.closed
            || facts.epoch == Ordering::Less && facts.taking_over
            || later;
        let holds = unsaved || secret;
        let live = facts.content == Kind::Live;
        let verdict = judge(facts);
        match verdict {
            Verdict::Busy => assert!(live && (ours || same_image && facts.trusted)),
            // The only way to use a mapping: all of this is true.
            Verdict::TakeOver => {
                assert!(ours && open && !later && same_image && facts.trusted && unsaved && !newer);
            }
            Verdict::Refuse(why) => {
                assert!(holds && (ours && open || same_image && facts.trusted && later));
                match why {
                    Why::Moved => assert!(!same_image && unsaved),
                    Why::Older => assert!(same_image && (newer || later)),
                    Why::Unreadable => assert_eq!(facts.content, Kind::Unreadable),
                    Why::Strange => assert_eq!(facts.content, Kind::Strange),
                    Why::Untrusted => assert!(!facts.trusted),
                }
            }
            // Deleted: it holds nothing that anybody could still want.
            Verdict::Obsolete => {
                assert!(!live && (ours || same_image));
                assert!(
                    !open || !holds || matches!(facts.content, Kind::Claim | Kind::OtherBoot),
                    "{facts:?}"
                );
                assert!(!holds || same_image);
            }
            // Left alone: nothing that this opening needs.
            Verdict::Elsewhere => {
                assert!(!(live && (ours || same_image && facts.trusted)));
                assert!(!(ours && open && holds), "{facts:?}");
            }
        }
        // And the reverse: a mapping that the superblock's opening needs is used or refused.
        if ours && open && holds {
            assert!(matches!(verdict, Verdict::TakeOver | Verdict::Refuse(_)));
        }
    }
}
