//! Active messages: ranks put values into a table that rank 0 holds, and read it back. No rank posts a receive.
//!
//! ```text
//! cargo build --release --example active
//! target/release/cableway run -n 4 -- target/release/examples/active
//! ```

use std::sync::{Arc, Mutex};

use cableway::{ActiveMessage, World};

/// Ids of the handlers.
const PUT: u32 = 1;
const READ: u32 = 2;
const TABLE: u32 = 3;

const ROWS: usize = 8;
const BYTES: usize = 1 << 20;

type Table = Arc<Mutex<Vec<Option<Vec<u8>>>>>;

fn main() -> Result<(), cableway::Error> {
    let world = World::init()?;
    let table: Table = Arc::new(Mutex::new(vec![None; ROWS * world.size() as usize]));
    let answer = Arc::new(Mutex::new(None));

    // The header names the row. The data lands in memory that the handler chooses after it has seen the header.
    let rows = table.clone();
    world.am_handler(PUT, move |message| put(message, &rows))?;
    // A handler may post, and never waits.
    let rows = table.clone();
    world.am_handler(READ, move |message| {
        let filled = rows.lock().map_or(0, |rows| rows.iter().flatten().count()) as u64;
        if let Err(error) = message.reply(TABLE, b"", filled.to_le_bytes()) {
            eprintln!("no answer to rank {}: {error}", message.source());
        }
    })?;
    let seen = answer.clone();
    world.am_handler(TABLE, move |message| {
        if let (Some(data), Ok(mut seen)) = (message.data(), seen.lock()) {
            *seen = data.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        }
    })?;
    // Every rank has its handlers now.
    world.communicator().barrier()?;

    for row in 0..ROWS {
        let row = (world.rank() as usize * ROWS + row) as u64;
        world.post_am(0, PUT, &row.to_le_bytes(), vec![row as u8; BYTES])?;
    }
    // The data of these posts has landed once rank 0 no longer needs it from here.
    world.flush_am();
    world.communicator().barrier()?;
    world.post_am(0, READ, b"", [0_u8; 0])?;
    world.progress_until(|| answer.lock().is_ok_and(|answer| answer.is_some()));
    if let Some(rows) = answer.lock().ok().and_then(|answer| *answer) {
        println!("rank {} sees {rows} rows of {BYTES} bytes", world.rank());
    }
    world.communicator().barrier()
}

fn put(message: ActiveMessage<'_>, table: &Table) {
    let row = message.header().first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
    let (source, table) = (message.source(), table.clone());
    message.receive(vec![0; BYTES], move |data, result| match (result, table.lock()) {
        (Ok(_), Ok(mut rows)) if (row as usize) < rows.len() => rows[row as usize] = Some(data),
        (Ok(_), _) => eprintln!("rank {source} names row {row}, which does not exist"),
        (Err(error), _) => eprintln!("row {row} of rank {source} is lost: {error}"),
    });
}
