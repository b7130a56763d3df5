//! The workers of a volume, for a program that has it: an engine for each partition
//! ([0041](../../../docs/decisions/0041-partitions.md)). One worker is the usual case.

use crate::attributes::SharedNames;
use crate::open::file::OpenFile;
use crate::types::At;
use crate::volume::{Engines, Fs, know_each_other};
use adit_base::Result;
use adit_block::Device;
use adit_reactor::{Engine, EngineOptions};
use adit_store::BlobId;
use std::sync::Arc;

/// The workers of an open volume: an engine for each of its partitions.
#[derive(Clone)]
pub struct Workers {
    engines: Engines,
    names: SharedNames,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Workers({})", self.engines.len())
    }
}

impl Workers {
    /// The only worker of a volume, which has all of its partitions.
    pub fn alone(engine: Arc<Engine<Fs>>) -> Result<Workers> {
        let names = engine.run(|fs| async { Ok(fs.shared_names()) })?;
        let engines = [engine].into();
        Ok(Workers { engines, names })
    }

    /// Starts the engines of the partitions that have none. `lead` is the first one's, which has
    /// done nothing yet but open the volume; after an error it has closed it.
    pub fn start(
        lead: Arc<Engine<Fs>>,
        device: &Arc<dyn Device>,
        options: &EngineOptions,
    ) -> Result<Workers> {
        match Workers::start_others(&lead, device, options) {
            Ok(workers) => Ok(workers),
            Err(error) => {
                // The first error is the one to tell.
                let _ = lead.shutdown(|fs| fs.close_volume());
                Err(error)
            }
        }
    }

    fn start_others(
        lead: &Arc<Engine<Fs>>,
        device: &Arc<dyn Device>,
        options: &EngineOptions,
    ) -> Result<Workers> {
        let seats = lead.run(|fs| async { Ok(fs.seats()) })?;
        let mut engines = vec![lead.clone()];
        let started = seats.into_iter().try_for_each(|seat| {
            let engine = Engine::start(device.clone(), options.clone(), |reactor| async move {
                Ok(seat.take(reactor))
            });
            engines.push(engine?);
            Ok(())
        });
        let known = started.and_then(|()| know_each_other(&engines));
        let names = known.and_then(|()| lead.run(|fs| async { Ok(fs.shared_names()) }));
        match names {
            Ok(names) => Ok(Workers {
                engines: engines.into(),
                names,
            }),
            Err(error) => {
                for other in &engines[1..] {
                    let _ = other.shutdown(|_| async { Ok(()) });
                }
                Err(error)
            }
        }
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.engines.len()
    }

    /// The engine of the first partition: for operations that are about no name and no file.
    #[inline]
    pub fn lead(&self) -> &Arc<Engine<Fs>> {
        &self.engines[0]
    }

    /// All engines.
    pub fn all(&self) -> &[Arc<Engine<Fs>>] {
        &self.engines
    }

    /// The engine of a partition.
    ///
    /// Panics for one that there is not.
    #[inline]
    pub fn engine(&self, partition: u32) -> &Arc<Engine<Fs>> {
        &self.engines[partition as usize]
    }

    /// The engine for operations on an open file.
    #[inline]
    pub fn of(&self, file: &OpenFile) -> &Arc<Engine<Fs>> {
        self.engine(self.number_of(file))
    }

    /// The number of the worker for operations on an open file.
    #[inline]
    pub fn number_of(&self, file: &OpenFile) -> u32 {
        // The file may be another volume's: its operations fail.
        let number = file.partition();
        match (number as usize) < self.engines.len() {
            true => number,
            false => 0,
        }
    }

    /// The engine for operations on a blob.
    pub fn of_blob(&self, id: BlobId) -> &Arc<Engine<Fs>> {
        self.engine(self.partition_of(id))
    }

    /// The partition that has a blob.
    #[inline]
    pub fn partition_of(&self, id: BlobId) -> u32 {
        if self.engines.len() == 1 {
            return 0;
        }
        self.names.partition_of(id)
    }

    /// The partition of an operation on a name, and how that is reached there: from its directory,
    /// so that the operation needs no worker of the directories above. A path with symbolic links
    /// on the way, or that isn't in the caches, stays as it is.
    ///
    /// As on Linux, the directories above may move between this and the operation.
    #[inline]
    pub fn near<'p>(&self, at: At<'p>) -> (u32, At<'p>) {
        if self.engines.len() == 1 {
            return (0, at);
        }
        self.names.near(at).unwrap_or((0, at))
    }

    /// The names, as any thread may read them without a worker.
    pub fn names(&self) -> &SharedNames {
        &self.names
    }

    /// True after a bug has poisoned one of them.
    pub fn poisoned(&self) -> bool {
        self.engines.iter().any(|engine| engine.poisoned())
    }

    /// Makes everything durable, marks the volume clean, and ends the engines. `EDEADLK` inside an
    /// operation, with nothing done.
    pub fn shutdown(&self) -> Result<()> {
        if let [only] = &*self.engines {
            return only.shutdown(|fs| fs.close_volume());
        }
        // First all operations end, of all workers: each of them may need any worker.
        for (number, engine) in self.engines.iter().enumerate() {
            match engine.drain() {
                // Nothing is done: this thread is in one of them.
                Err(error) if number == 0 => return Err(error),
                // It was drained before, or this process is a forked one.
                drained => drop(drained),
            }
        }
        // The others are asked for parts of this.
        let closed = self.lead().finish(|fs| fs.close_volume());
        let others = self.engines[1..].iter();
        let ended = others.map(|engine| engine.finish(|_| async { Ok(()) }));
        closed.and(ended.fold(Ok(()), Result::and))
    }
}
