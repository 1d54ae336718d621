//! Prints how fast the convertor packs and unpacks host memory, beside a memcpy of as many bytes.
//!
//! `cargo run --release -p cableway-datatype --example pack_rate [BYTES]`: bytes of data a message, 1 MiB by default.

use std::hint::black_box;
use std::time::{Duration, Instant};

use cableway_common_cuda::{Devices, Location};
use cableway_datatype::{ArrayOrder, Convertor, Datatype, Error, Layout, Predefined};

/// Fragments in which messages are packed.
const FRAGMENT: usize = 32 << 10;

/// Time over which a rate is taken; the best of several is printed.
const SPAN: Duration = Duration::from_millis(40);
const ROUNDS: usize = 5;

fn main() -> Result<(), Error> {
    let bytes = std::env::args().nth(1).and_then(|bytes| bytes.parse().ok()).unwrap_or(1 << 20);
    println!("{:<34} {:>10} {:>10} {:>8}", format!("{bytes} bytes of data, GB/s"), "pack", "unpack", "of copy");
    let copied = memcpy(bytes);
    println!("{:<34} {copied:>10.2}", "memcpy");
    for (name, layout) in layouts(bytes as i64)? {
        let count = (bytes as u64 / layout.size()).max(1);
        let packed = convert(&layout, count, false)?;
        let unpacked = convert(&layout, count, true)?;
        println!("{name:<34} {packed:>10.2} {unpacked:>10.2} {:>8.2}", packed / copied);
    }
    for len in [1, 8, 64, 1024, 8192] {
        println!("contiguous, {len} bytes: {:.1} ns for a convertor and its pack", small(len)?);
    }
    Ok(())
}

fn layouts(bytes: i64) -> Result<Vec<(String, Layout)>, Error> {
    let byte = Predefined::Byte.datatype();
    let double = Predefined::Double.datatype();
    let mut layouts = vec![("contiguous".to_owned(), Datatype::contiguous(bytes, &byte)?.commit())];
    for block in [4, 8, 16, 24, 32, 64, 100, 128, 256, 1024, 4096] {
        let vector = Datatype::hvector(bytes / block, block, 2 * block, &byte)?;
        layouts.push((format!("vector, {block} of every {}", 2 * block), vector.commit()));
    }
    let far = Datatype::hvector(bytes / 8, 8, 32, &byte)?;
    layouts.push(("vector, 8 of every 32".to_owned(), far.commit()));
    let face = Datatype::subarray(&[bytes / 256, 64, 64], &[bytes / 256, 8, 4], &[0; 3], ArrayOrder::C, &double)?;
    layouts.push(("8 rows of 4 doubles of every plane".to_owned(), face.commit()));
    let structure =
        Datatype::structure(&[1, 1, 2], &[0, 12, 16], &[Predefined::Int.datatype(), byte.clone(), double.clone()])?;
    layouts.push(("structures of 4, 1 and 16".to_owned(), structure.commit()));
    let places: Vec<i64> = (0..bytes / 8).map(|i| 4 * i + ((i * 2_654_435_761) >> 12) % 3).collect();
    layouts.push(("listed doubles".to_owned(), Datatype::indexed_block(1, &places, &double)?.commit()));
    let lengths: Vec<i64> = (0..bytes / 16).map(|i| 1 + ((i * 2_654_435_761) >> 12) % 3).collect();
    let places: Vec<i64> = (0..bytes / 16).map(|i| 4 * i).collect();
    layouts.push(("1 to 3 doubles of every 4".to_owned(), Datatype::indexed(&lengths, &places, &double)?.commit()));
    Ok(layouts)
}

fn memcpy(bytes: usize) -> f64 {
    let (from, mut to) = (vec![1_u8; bytes], vec![0_u8; bytes]);
    rate(bytes, || {
        for (to, from) in to.chunks_mut(FRAGMENT).zip(black_box(&from).chunks(FRAGMENT)) {
            to.copy_from_slice(from);
        }
        black_box(&mut to);
        Ok(())
    })
    .unwrap_or(f64::NAN)
}

fn convert(layout: &Layout, count: u64, unpack: bool) -> Result<f64, Error> {
    let size = layout.packed_size(count)?;
    let span = layout.span(count).map_or(0, |(offset, len)| offset as usize + len as usize);
    let (mut buffer, mut packed) = (vec![1_u8; span], vec![0_u8; size as usize]);
    rate(packed.len(), || {
        let base = black_box(buffer.as_mut_ptr());
        // SAFETY: the buffer holds the elements, from offset 0 on, and only the convertor touches it while it lives.
        let mut convertor = unsafe { Convertor::for_receive(layout, base, count, Location::HOST, &Devices::none()) };
        for fragment in packed.chunks_mut(FRAGMENT) {
            if unpack {
                convertor.unpack_slice(fragment)?;
            } else {
                convertor.pack_slice(fragment)?;
            }
        }
        black_box(&mut packed);
        Ok(())
    })
}

/// Nanoseconds to make a convertor for a small contiguous message and to pack it.
fn small(len: usize) -> Result<f64, Error> {
    let layout = Predefined::Byte.datatype().commit();
    let (buffer, mut packed) = (vec![1_u8; len], vec![0_u8; len]);
    let devices = Devices::none();
    let rate = rate(1, || {
        let base = black_box(buffer.as_ptr());
        // SAFETY: the buffer has as many bytes and lives, unwritten, beyond the convertor.
        let mut convertor =
            unsafe { Convertor::for_send(black_box(&layout), base, len as u64, Location::HOST, &devices) };
        convertor.pack_slice(black_box(&mut packed))?;
        Ok(())
    })?;
    Ok(1.0 / rate)
}

/// Best rate of `work`, which moves `bytes`, in GB/s.
fn rate(bytes: usize, mut work: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut best = 0_f64;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let mut done = 0_u64;
        while begin.elapsed() < SPAN {
            for _ in 0..16 {
                work()?;
            }
            done += 16;
        }
        best = best.max(bytes as f64 * done as f64 / begin.elapsed().as_secs_f64() / 1e9);
    }
    Ok(best)
}
