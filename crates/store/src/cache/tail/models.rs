//! Models of a tail that ends while its client appends (`cargo xtask models`).

use super::*;
use adit_base::sync::atomic::AtomicU64;
use adit_base::sync::model::{check, spawn};
use std::sync::Arc;

/// The words that change, and a ring of two bytes.
#[derive(Default)]
struct Model {
    state: AtomicU64,
    last: AtomicU64,
    published: [AtomicU64; 2],
    ring: [AtomicU64; 2],
}

impl Model {
    fn word(&self, word: u64) -> &AtomicU64 {
        const OTHER: u64 = word::PUBLISHED + 8;
        match word {
            word::STATE => &self.state,
            word::FINAL => &self.last,
            word::PUBLISHED => &self.published[0],
            OTHER => &self.published[1],
            _ => unreachable!("no side changes it meanwhile"),
        }
    }
}

/// Either side's.
struct Side(Arc<Model>);

/// Of a server that doesn't say that the tail ends before it looks.
struct Silent(Side);

impl Words for Side {
    fn get(&self, word: u64) -> Result<u64> {
        Ok(self.0.word(word).load(Ordering::Acquire))
    }

    fn set(&self, word: u64, value: u64) -> Result<()> {
        self.0.word(word).store(value, Ordering::Release);
        Ok(())
    }
}

impl Words for Silent {
    fn get(&self, word: u64) -> Result<u64> {
        self.0.get(word)
    }

    fn set(&self, word: u64, value: u64) -> Result<()> {
        match (word, value) {
            (word::STATE, state::ENDING) => Ok(()),
            _ => self.0.set(word, value),
        }
    }
}

#[test]
fn what_was_acknowledged_is_found_when_a_tail_ends() {
    a_tail_ends(Side);
}

#[test]
#[should_panic(expected = "acknowledged, and not found")]
fn planted_a_tail_that_is_not_said_to_end_is_found() {
    a_tail_ends(|model| Silent(Side(model)));
}

fn a_tail_ends<W: Words + 'static>(server: fn(Arc<Model>) -> W) {
    check(3, move || {
        let model = Arc::new(Model::default());
        let client = Side(model.clone());
        client.set_count(word::PUBLISHED, 0).expect("memory");
        let thread = spawn(move || {
            let mut acknowledged = 0;
            for bytes in 1..=2 {
                client.0.ring[bytes as usize - 1].store(bytes, Ordering::Relaxed);
                if !client.publish(bytes).expect("memory") {
                    break;
                }
                acknowledged = bytes;
            }
            let ended = client.ended_at().expect("memory");
            assert!(
                ended.is_none_or(|ended| ended >= acknowledged),
                "an append is done and is not"
            );
            acknowledged
        });
        let server = server(model.clone());
        let ended = server.end().expect("memory");
        fence(Ordering::Acquire);
        for byte in 0..ended {
            let found = model.ring[byte as usize].load(Ordering::Relaxed);
            assert_eq!(found, byte + 1, "published before it was there");
        }
        let acknowledged = thread.join().expect("a thread");
        assert!(ended >= acknowledged, "acknowledged, and not found");
    });
}
