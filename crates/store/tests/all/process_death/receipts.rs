//! Operations learn the numbers of their transactions, and the next opening how far the dead
//! process came.

use super::moment::{
    Mappings, Moment, VOLUME_BYTES, formatted, formatted_with, open_alone, open_with, options,
};
use super::world::content;
use crate::rig::{assert_clean, close, create, create_in, drop_dead, pattern};
use adit_base::{Errno, Error, Result};
use adit_block::FaultDevice;
use adit_reactor::Engine;
use adit_reactor::sync::join_all;
use adit_store::{Predecessor, Receipt, Store, StoreOptions, SyncKind, Takeover};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

/// Remembers the reported numbers, and the state left by a process that dies right then.
struct Told {
    device: Arc<FaultDevice>,
    mappings: Arc<Mappings>,
    heard: Mutex<Vec<(u64, Moment)>>,
}

impl Receipt for Told {
    fn decided(&self, apply: u64) {
        let moment = Moment::of(&self.device, &self.mappings);
        self.heard.lock().unwrap().push((apply, moment));
    }
}

impl Told {
    /// The only number.
    fn number(&self) -> u64 {
        let numbers = self.numbers();
        assert_eq!(numbers.len(), 1, "{numbers:?}");
        numbers[0]
    }

    fn numbers(&self) -> Vec<u64> {
        let heard = self.heard.lock().unwrap();
        heard.iter().map(|(number, _)| *number).collect()
    }

    fn moment(&self) -> Moment {
        self.heard.lock().unwrap()[0].1.clone()
    }
}

/// A volume, and a process that has it.
struct Scene {
    device: Arc<FaultDevice>,
    mappings: Arc<Mappings>,
    engine: Arc<Engine<Store>>,
}

impl Scene {
    fn new() -> Scene {
        Scene::on(formatted(VOLUME_BYTES))
    }

    fn on(device: Arc<FaultDevice>) -> Scene {
        Scene {
            mappings: Arc::new(Mappings::of(&device)),
            engine: open_alone(device.clone(), &options()).unwrap(),
            device,
        }
    }

    fn receipt(&self) -> Arc<Told> {
        Arc::new(Told {
            device: self.device.clone(),
            mappings: self.mappings.clone(),
            heard: Mutex::default(),
        })
    }

    fn epoch(&self) -> u64 {
        self.engine
            .run(|store| async { Ok(store.epoch()) })
            .unwrap()
    }

    /// How many transactions were applied so far: one more has the next number.
    fn last(&self) -> u64 {
        let told = self.receipt();
        let receipt = told.clone();
        let created = self
            .engine
            .run(|store| async { store.with_receipt(receipt, create(store)).await });
        created.unwrap();
        told.number() - 1
    }

    /// The predecessor that an opening finds after a death at this moment.
    fn after(&self, left: &Moment, options: &StoreOptions) -> Option<Predecessor> {
        let device = left.restore(&self.device, &self.mappings);
        let engine = open_with(device, options).unwrap();
        let predecessor = predecessor(&engine);
        assert_clean(&engine);
        close(engine);
        predecessor
    }

    fn dies_now(&self) -> Moment {
        Moment::of(&self.device, &self.mappings)
    }
}

fn predecessor(engine: &Arc<Engine<Store>>) -> Option<Predecessor> {
    engine
        .run(|store| async { Ok(store.predecessor()) })
        .unwrap()
}

fn came(predecessor: Option<Predecessor>) -> (u64, u64) {
    let Predecessor { epoch, applied, .. } = predecessor.expect("a dead process");
    (epoch, applied.0[0])
}

/// Each partition counts for itself: the next opening knows of a number by the partition in it.
#[test]
fn a_receipt_names_the_partition_that_decided() {
    let device = formatted(300 << 20);
    let mappings = Arc::new(Mappings::of(&device));
    let divided = StoreOptions {
        partitions: 3,
        ..options()
    };
    let scene = Scene {
        engine: open_alone(device.clone(), &divided).unwrap(),
        mappings,
        device,
    };
    // The first partition is far ahead of the others.
    let ids = scene.engine.run(|store| async move {
        for _ in 0..20 {
            create(store).await?;
        }
        Ok([create_in(store, 1).await?, create_in(store, 2).await?])
    });
    let ids = ids.unwrap();
    let made = ids.map(|id| {
        let told = scene.receipt();
        let receipt = told.clone();
        let created = scene.engine.run(|store| async move {
            let other = store.of(id);
            other.with_receipt(receipt, create_in(other, 0)).await
        });
        created.unwrap();
        (told, scene.dies_now())
    });
    drop_dead(scene.engine.clone());
    for (told, left) in made {
        let has = |moment: &Moment| {
            let predecessor = scene.after(moment, &options()).expect("a dead process");
            predecessor.applied.has(told.number())
        };
        assert!(has(&left));
        assert!(!has(&told.moment()), "it counts a store later");
    }
}

#[test]
fn the_next_opening_says_how_far_the_dead_process_came() {
    let scene = Scene::new();
    // Formatted, and closed.
    assert_eq!(came(predecessor(&scene.engine)), (1, u64::MAX));
    let nothing = scene.dies_now();
    let told = scene.receipt();
    let receipt = told.clone();
    scene
        .engine
        .run(|store| async { store.with_receipt(receipt, create(store)).await })
        .unwrap();
    let (epoch, number) = (scene.epoch(), told.number());
    let left = scene.dies_now();
    drop_dead(scene.engine.clone());
    let applied = came(scene.after(&left, &options()));
    assert_eq!(applied, (epoch, number));
    // A store earlier it would not have counted.
    let applied = came(scene.after(&told.moment(), &options()));
    assert_eq!(applied, (epoch, number - 1));
    // It had just opened the volume.
    let applied = came(scene.after(&nothing, &options()));
    assert_eq!(applied, (epoch, number - 1));
}

#[test]
fn what_was_durable_when_the_process_died_counts_too() {
    let scene = Scene::new();
    let told = scene.receipt();
    let receipt = told.clone();
    scene
        .engine
        .run(|store| async {
            let id = store.with_receipt(receipt, create(store)).await?;
            let blob = store.blob(id).await?;
            store.sync(&blob, SyncKind::All).await
        })
        .unwrap();
    let (epoch, left) = (scene.epoch(), scene.dies_now());
    drop_dead(scene.engine.clone());
    let applied = came(scene.after(&left, &options()));
    assert_eq!(applied, (epoch, told.number()));
}

/// A rename over a file looks at the names in a transaction, writes its source's data back, and
/// then renames. When the process died before that, the number that the look had taken said that it
/// had renamed.
#[test]
fn a_transaction_that_only_looks_takes_no_number() {
    let scene = Scene::new();
    let told = scene.receipt();
    let receipt = told.clone();
    scene
        .engine
        .run(|store| async {
            let operation = async {
                store.transact(|transaction| transaction.state()).await?;
                create(store).await
            };
            store.with_receipt(receipt, operation).await
        })
        .unwrap();
    let (epoch, number) = (scene.epoch(), told.number());
    drop_dead(scene.engine.clone());
    let applied = came(scene.after(&told.moment(), &options()));
    assert_eq!(applied, (epoch, number - 1), "nothing was created");
}

#[test]
fn operations_that_run_at_once_hear_their_own_numbers_only() {
    let scene = Scene::new();
    let told = [scene.receipt(), scene.receipt()];
    let receipts = told.clone();
    scene
        .engine
        .run(|store| async {
            let [first, second] = receipts;
            let wait = async |turns| {
                for _ in 0..turns {
                    store.reactor().yield_now().await;
                }
            };
            type Work<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;
            let works: [Work<'_>; 3] = [
                Box::pin(store.with_receipt(first, async {
                    wait(4).await;
                    create(store).await.map(drop)
                })),
                Box::pin(store.with_receipt(second, async {
                    wait(2).await;
                    create(store).await?;
                    wait(5).await;
                    create(store).await.map(drop)
                })),
                // Without one: before, between and after them.
                Box::pin(async {
                    for _ in 0..8 {
                        create(store).await?;
                        wait(1).await;
                    }
                    Ok(())
                }),
            ];
            join_all(works).await.into_iter().collect::<Result<()>>()
        })
        .unwrap();
    let [first, second] = told.map(|told| told.number());
    assert!(2 < second && second < first, "{second} {first}");
    assert!(first + 4 < scene.last());
    drop_dead(scene.engine);
}

#[test]
fn an_operation_hears_the_number_of_its_first_transaction_only() {
    let scene = Scene::new();
    let before = scene.last() + 1;
    let told = scene.receipt();
    let receipt = told.clone();
    scene
        .engine
        .run(|store| async {
            let operation = async {
                create(store).await?;
                create(store).await
            };
            store.with_receipt(receipt, operation).await
        })
        .unwrap();
    assert_eq!(told.number(), before + 1);
    assert_eq!(scene.last(), before + 2);
    drop_dead(scene.engine);
}

#[test]
fn an_operation_that_fails_hears_no_number() {
    let scene = Scene::new();
    let told = scene.receipt();
    let receipt = told.clone();
    let failed = scene.engine.run(|store| async {
        let operation = store.transact(|_| Err::<(), _>(Error::new(Errno::EXIST).into()));
        store.with_receipt(receipt, operation).await
    });
    assert_eq!(failed.unwrap_err().errno(), Errno::EXIST);
    assert_eq!(told.numbers(), []);
    // The next operation doesn't have it.
    assert!(scene.last() < u64::MAX);
    assert_eq!(told.numbers(), []);
    drop_dead(scene.engine);
}

/// An atomic write first writes dirty pages back and fills holes; those transactions don't count.
#[test]
fn an_atomic_write_hears_the_number_of_the_transaction_that_has_it() {
    const LEN: usize = 40_000;
    for data_checksums in [false, true] {
        let scene = Scene::on(formatted_with(VOLUME_BYTES, data_checksums));
        let told = scene.receipt();
        let receipt = told.clone();
        let (old, new) = (pattern(LEN, 1), pattern(LEN, 2));
        let id = scene
            .engine
            .run(|store| async {
                let id = create(store).await?;
                let blob = store.blob(id).await?;
                store.write(&blob, 0, &old).await?;
                let ranges = [(0, &new[..]), (100_000, &new[..])];
                let write = store.write_atomic(&blob, &ranges);
                store.with_receipt(receipt, write).await?;
                Ok(id)
            })
            .unwrap();
        let (epoch, left) = (scene.epoch(), scene.dies_now());
        drop_dead(scene.engine.clone());
        for (moment, applied, expected) in [
            (told.moment(), told.number() - 1, &old),
            (left, told.number(), &new),
        ] {
            let device = moment.restore(&scene.device, &scene.mappings);
            let engine = open_with(device, &options()).unwrap();
            assert_eq!(came(predecessor(&engine)), (epoch, applied));
            let found = content(&engine, id).unwrap();
            assert_eq!(found.len() > LEN, applied == told.number());
            assert!(found[..LEN] == expected[..]);
            close(engine);
        }
    }
}

#[test]
fn a_cached_write_and_its_write_back_tell_no_number() {
    let scene = Scene::new();
    let told = scene.receipt();
    let receipt = told.clone();
    scene
        .engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            let operation = async {
                store.write(&blob, 0, &pattern(50_000, 1)).await?;
                store.sync(&blob, SyncKind::All).await
            };
            store.with_receipt(receipt, operation).await
        })
        .unwrap();
    assert_eq!(told.numbers(), []);
    drop_dead(scene.engine);
}

#[test]
fn who_takes_nothing_over_knows_of_no_predecessor() {
    let scene = Scene::new();
    scene.last();
    let left = scene.dies_now();
    close(scene.engine.clone());
    let engine = open_with(scene.device.clone(), &options()).unwrap();
    let (_, applied) = came(predecessor(&engine));
    assert_eq!(applied, u64::MAX, "it was closed");
    close(engine);
    for takeover in [Takeover::Discard, Takeover::Leave] {
        let options = StoreOptions {
            takeover,
            ..options()
        };
        assert_eq!(scene.after(&left, &options), None, "{takeover:?}");
    }
    let mut lost = left.clone();
    lost.mappings.clear();
    assert_eq!(scene.after(&lost, &options()), None, "it is gone");
    // One of before there were numbers.
    let mut old = left.clone();
    old.mappings[0].1[144..152].fill(0);
    assert_eq!(scene.after(&old, &options()), None, "it did not count");
    let look = StoreOptions {
        read_only: true,
        in_memory: true,
        ..options()
    };
    let device = left.restore(&scene.device, &scene.mappings);
    let engine = open_with(device, &look).unwrap();
    assert_eq!(predecessor(&engine), None, "it only looks");
    drop_dead(engine);
    assert!(scene.after(&left, &options()).is_some());
}
