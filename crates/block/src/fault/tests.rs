//! Tests of the fault device.

use super::*;
use crate::Buffer;

fn write(device: &FaultDevice, sector: u64, value: u8) -> Result<(), Errno> {
    device
        .execute(Request::write(
            sector * 512,
            Buffer::copy_of(&[value; 512]),
            0,
        ))
        .result
}

fn flush(device: &FaultDevice) -> Result<(), Errno> {
    device.execute(Request::flush(0)).result
}

fn sector(image: &Image, sector: u64) -> u8 {
    let mut bytes = [0; 512];
    image.read(sector * 512, &mut bytes);
    assert!(
        bytes.iter().all(|&byte| byte == bytes[0]),
        "a sector never tears"
    );
    bytes[0]
}

#[test]
fn what_was_flushed_survives_and_what_was_not_may_be_lost_kept_or_torn() {
    let device = FaultDevice::new(FaultConfig::default());
    write(&device, 0, 1).expect("write");
    flush(&device).expect("flush");
    write(&device, 0, 2).expect("write");
    let two = Buffer::copy_of(&[3; 1024]);
    assert_eq!(device.execute(Request::write(1024, two, 0)).result, Ok(()));
    assert_eq!(device.at_risk(), (2, 0));
    let mut random = Prng::new(1);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let image = device.power_cut(&mut random);
        seen.insert((sector(&image, 0), sector(&image, 2), sector(&image, 3)));
    }
    let all = [1, 2]
        .into_iter()
        .flat_map(|a| [(a, 0, 0), (a, 0, 3), (a, 3, 0), (a, 3, 3)]);
    assert_eq!(seen, all.collect());
}

#[test]
fn a_fua_write_survives_and_nothing_older_comes_back_over_it() {
    let device = FaultDevice::new(FaultConfig::default());
    write(&device, 0, 1).expect("write");
    write(&device, 1, 1).expect("write");
    let fua = Request::write_fua(0, Buffer::copy_of(&[2; 512]), 0);
    assert_eq!(device.execute(fua).result, Ok(()));
    for seed in 0..50 {
        let image = device.power_cut(&mut Prng::new(seed));
        assert_eq!(sector(&image, 0), 2);
    }
    assert_eq!(sector(&device.power_cut_with(|_, _| true), 1), 1);
    assert_eq!(sector(&device.power_cut_with(|_, _| false), 1), 0);
}

#[test]
fn a_flush_does_not_cover_what_completes_after_its_submission() {
    let config = FaultConfig {
        queued: true,
        ..FaultConfig::default()
    };
    let device = FaultDevice::new(config);
    let mut queue = device.open_queue(8).expect("a queue");
    let mut done = Vec::new();
    let bytes = Buffer::copy_of(&[1; 512]);
    assert!(matches!(
        queue.submit(Request::write(0, bytes, 1)),
        Submission::Accepted
    ));
    assert!(matches!(
        queue.submit(Request::flush(2)),
        Submission::Accepted
    ));
    while queue.in_flight() > 0 {
        queue.poll(&mut done);
    }
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    assert_eq!(
        device.at_risk(),
        (1, 0),
        "the write was in flight when the flush was submitted"
    );
    assert!(matches!(
        queue.submit(Request::flush(3)),
        Submission::Accepted
    ));
    queue.poll(&mut done);
    assert_eq!(device.at_risk(), (0, 0));
    assert_eq!(sector(&device.power_cut_with(|_, _| false), 0), 1);
}

#[test]
fn without_a_volatile_cache_only_the_write_in_flight_is_at_risk() {
    let config = FaultConfig {
        volatile_cache: false,
        ..FaultConfig::default()
    };
    let device = FaultDevice::new(config);
    device.cut_after(1);
    write(&device, 0, 1).expect("before the cut");
    assert_eq!(write(&device, 1, 1), Err(Errno::IO));
    assert_eq!(write(&device, 2, 1), Err(Errno::IO));
    assert!(device.is_cut());
    assert_eq!(device.at_risk(), (0, 1));
    let seen: std::collections::BTreeSet<_> = (0..40)
        .map(|seed| device.power_cut(&mut Prng::new(seed)))
        .map(|image| (sector(&image, 0), sector(&image, 1), sector(&image, 2)))
        .collect();
    assert_eq!(seen, [(1, 0, 0), (1, 1, 0)].into());
}

#[test]
fn after_a_cut_everything_fails_until_the_image_is_reopened() {
    let device = FaultDevice::new(FaultConfig::default());
    write(&device, 0, 1).expect("write");
    device.cut_after(0);
    assert_eq!(flush(&device), Err(Errno::IO));
    let read = device.execute(Request::read(0, Buffer::zeroed(512), 0));
    assert_eq!(read.result, Err(Errno::IO));
    let reopened = device.reopen(device.power_cut_with(|_, _| true));
    let read = reopened.execute(Request::read(0, Buffer::zeroed(512), 0));
    assert_eq!(
        (read.result, read.request.buffers[0].as_slice()[0]),
        (Ok(()), 1)
    );
}

#[test]
fn rules_strike_by_kind_range_and_count() {
    let device = FaultDevice::new(FaultConfig::default());
    let rule = FaultRule::new(FaultOn::Write, FaultEffect::Error(Errno::IO));
    device.inject(rule.within(512..1024).after(1).times(1));
    assert_eq!(write(&device, 0, 1), Ok(()), "out of range");
    assert_eq!(write(&device, 1, 1), Ok(()), "the first match passes");
    assert_eq!(write(&device, 1, 2), Err(Errno::IO));
    assert_eq!(write(&device, 1, 3), Ok(()), "transient");
    assert_eq!(sector(&device.image(), 1), 3);
    device.inject(FaultRule::new(
        FaultOn::Flush,
        FaultEffect::Error(Errno::IO),
    ));
    assert_eq!(
        [flush(&device), flush(&device)],
        [Err(Errno::IO); 2],
        "sticky"
    );
    device.clear_faults();
    assert_eq!(flush(&device), Ok(()));
    assert_eq!(device.faults(), 3);
}

#[test]
fn broken_devices_lose_tear_and_corrupt_silently() {
    let device = FaultDevice::new(FaultConfig::default());
    device.inject(FaultRule::new(FaultOn::Write, FaultEffect::Lose).times(1));
    write(&device, 0, 1).expect("claims success");
    assert_eq!(sector(&device.image(), 0), 0);
    device.inject(FaultRule::new(FaultOn::Write, FaultEffect::TearSilently).times(1));
    let many = Request::write(0, Buffer::copy_of(&[1; 64 * 512]), 0);
    assert_eq!(device.execute(many).result, Ok(()));
    let kept = (0..64).filter(|&n| sector(&device.image(), n) == 1).count();
    assert!(kept > 10 && kept < 54);
    device.inject(FaultRule::new(FaultOn::Read, FaultEffect::Corrupt).times(1));
    let read = |buffer| device.execute(Request::read(0, buffer, 0)).request;
    let [bad, good] = [read(Buffer::zeroed(512)), read(Buffer::zeroed(512))];
    let pairs = bad.buffers[0]
        .as_slice()
        .iter()
        .zip(good.buffers[0].as_slice());
    assert_eq!(pairs.map(|(a, b)| (a ^ b).count_ones()).sum::<u32>(), 1);
}

#[test]
fn a_delayed_request_is_overtaken() {
    let device = FaultDevice::new(FaultConfig {
        queued: true,
        ..FaultConfig::default()
    });
    device.inject(FaultRule::new(FaultOn::Write, FaultEffect::Delay { polls: 5 }).times(1));
    let mut queue = device.open_queue(8).expect("a queue");
    let mut done = Vec::new();
    for token in 0..3 {
        let request = Request::write(token * 512, Buffer::zeroed(512), token);
        assert!(matches!(queue.submit(request), Submission::Accepted));
    }
    while queue.in_flight() > 0 {
        queue.poll(&mut done);
    }
    assert_eq!(
        done.last().map(|completion| completion.request.token),
        Some(0)
    );
}

#[test]
fn what_a_failing_flush_may_have_lost_no_other_one_makes_durable() {
    for fails in [
        Request::flush(0),
        Request::write_fua(512, Buffer::copy_of(&[9; 512]), 0),
    ] {
        let device = FaultDevice::new(FaultConfig {
            queued: true,
            ..FaultConfig::default()
        });
        let put =
            |sector: u64, token| Request::write(sector * 512, Buffer::copy_of(&[1; 512]), token);
        let mut queue = device.open_queue(8).expect("a queue");
        let mut done = Vec::new();
        assert!(matches!(queue.submit(put(0, 1)), Submission::Accepted));
        queue.poll(&mut done);
        // It fails late, after a later request has succeeded.
        device.inject(FaultRule::new(FaultOn::Any, FaultEffect::Error(Errno::IO)).times(1));
        device.inject(FaultRule::new(FaultOn::Any, FaultEffect::Delay { polls: 50 }).times(1));
        assert!(matches!(queue.submit(fails), Submission::Accepted));
        let mut durable = put(2, 2);
        durable.operation = Operation::Write { fua: true };
        for request in [Request::flush(3), durable] {
            assert!(matches!(queue.submit(request), Submission::Accepted));
        }
        while queue.in_flight() > 0 {
            queue.poll(&mut done);
        }
        let ends: Vec<_> = done
            .iter()
            .map(|completion| (completion.request.token, completion.result))
            .collect();
        assert_eq!(ends.last(), Some(&(0, Err(Errno::IO))));
        assert!(ends[..3].iter().all(|(_, result)| result.is_ok()));
        assert_eq!(flush(&device), Ok(()));
        for kept in [false, true] {
            let image = device.moment().power_cut_with(|_, _| kept);
            let left = [0, 1, 2].map(|at| sector(&image, at));
            assert_eq!(left, [u8::from(kept), 0, u8::from(kept)]);
        }
        // Written again, they are as good as any.
        for at in [0, 2] {
            write(&device, at, 2).expect("write");
        }
        assert_eq!(flush(&device), Ok(()));
        for kept in [false, true] {
            let image = device.moment().power_cut_with(|_, _| kept);
            assert_eq!([0, 1, 2].map(|at| sector(&image, at)), [2, 0, 2]);
        }
    }
}

#[test]
fn the_seed_decides_everything() {
    let run = |seed| {
        let device = FaultDevice::new(FaultConfig {
            queued: true,
            seed,
            ..Default::default()
        });
        let mut queue = device.open_queue(32).expect("a queue");
        let mut done = Vec::new();
        for token in 0..20 {
            let bytes = Buffer::copy_of(&[token as u8 + 1; 4096]);
            let _ = queue.submit(Request::write(token % 5 * 4096, bytes, token));
        }
        while queue.in_flight() > 4 {
            queue.poll(&mut done);
        }
        let order: Vec<_> = done
            .iter()
            .map(|completion| completion.request.token)
            .collect();
        (order, device.power_cut(&mut Prng::new(seed)))
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

/// Against a model that knows, for each sector, every value it may legally have after a cut.
#[test]
fn every_outcome_of_a_power_cut_is_legal_and_none_is_forgotten() {
    const SECTORS: u64 = 16;
    for seed in 0..60 {
        let mut random = Prng::new(seed);
        let volatile_cache = !seed.is_multiple_of(4);
        let size_bytes = SECTORS * 512;
        let device = FaultDevice::new(FaultConfig {
            size_bytes,
            volatile_cache,
            seed,
            ..Default::default()
        });
        let mut legal: Vec<Vec<u8>> = vec![vec![0]; SECTORS as usize];
        let mut seen = legal.clone();
        // Sectors whose last value no later flush makes durable.
        let mut forsaken = vec![false; SECTORS as usize];
        for value in 1..40u8 {
            let from = random.below(SECTORS);
            let count = 1 + random.below(SECTORS - from);
            let bytes = Buffer::copy_of(&vec![value; count as usize * 512]);
            let touched = from as usize..(from + count) as usize;
            match random.below(7) {
                0 => {
                    flush(&device).expect("flush");
                    for (values, forsaken) in legal.iter_mut().zip(&forsaken) {
                        if !forsaken {
                            values.drain(..values.len() - 1);
                        }
                    }
                }
                6 => {
                    let rule = FaultRule::new(FaultOn::Flush, FaultEffect::Error(Errno::IO));
                    device.inject(rule.times(1));
                    flush(&device).expect_err("a fault");
                    for (values, forsaken) in legal.iter().zip(&mut forsaken) {
                        *forsaken = values.len() > 1;
                    }
                }
                1 => {
                    device
                        .execute(Request::write_fua(from * 512, bytes, 0))
                        .result
                        .expect("fua");
                    legal[touched.clone()].fill(vec![value]);
                    forsaken[touched].fill(false);
                }
                _ => {
                    device
                        .execute(Request::write(from * 512, bytes, 0))
                        .result
                        .expect("write");
                    forsaken[touched.clone()].fill(false);
                    for values in &mut legal[touched] {
                        if !volatile_cache {
                            values.clear();
                        }
                        values.push(value);
                    }
                }
            }
        }
        for _ in 0..400 {
            let image = device.power_cut(&mut random);
            for (number, values) in legal.iter().enumerate() {
                let value = sector(&image, number as u64);
                assert!(
                    values.contains(&value),
                    "seed {seed}: sector {number} is {value}"
                );
                seen[number].push(value);
            }
        }
        // Each of the last two legal values turns up (older ones need several losses in a row).
        for (values, seen) in legal.iter().zip(&seen) {
            assert!(
                values
                    .iter()
                    .rev()
                    .take(2)
                    .all(|value| seen.contains(value)),
                "seed {seed}"
            );
        }
    }
}
