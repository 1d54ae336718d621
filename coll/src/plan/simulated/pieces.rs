//! Reductions by a function of the program, which is not commutative.

use std::ffi::c_void;

use cableway_datatype::{Datatype, Layout, Predefined};

use super::super::pieces::{Elements, Ends, Pieces};
use super::super::shares::{Results, Shares};
use super::super::{Kind, Me, Place, Plan};
use super::{Random, Rank, run};
use crate::function::Function;

/// How the two numbers of an element lie in memory, and how far apart elements are.
#[derive(Clone, Copy, Debug)]
struct Form {
    first: i64,
    second: i64,
    extent: i64,
}

/// Without gaps; with gaps and a first byte behind the address; with elements that go backwards.
const FORMS: [Form; 3] = [
    Form { first: 0, second: 4, extent: 8 },
    Form { first: 4, second: 12, extent: 20 },
    Form { first: -4, second: 4, extent: -16 },
];

impl Form {
    fn layout(&self) -> Layout {
        let numbers = Datatype::hindexed(&[1, 1], &[self.first, self.second], &Predefined::Int32.datatype()).unwrap();
        Datatype::resized(&numbers, 0, self.extent).unwrap().commit()
    }

    fn elements(&self, plan: &mut Plan) -> Elements {
        if self.extent == 8 {
            return Elements { kind: Kind::Bytes, size: 8, extent: 8, bounds: (0, 8) };
        }
        let layout = self.layout();
        Elements { kind: plan.kind(&layout), size: 8, extent: self.extent, bounds: (self.first, self.second + 4) }
    }

    /// Returns the addresses of an element's numbers, from that of the first element on.
    fn numbers(&self, element: u64) -> [i64; 2] {
        [self.first, self.second].map(|offset| element as i64 * self.extent + offset)
    }
}

/// `x -> a * x + b`. The combination of two applies the first one last.
type Affine = [u32; 2];

fn combined([a, b]: Affine, [c, d]: Affine) -> Affine {
    [a.wrapping_mul(c), a.wrapping_mul(d).wrapping_add(b)]
}

unsafe extern "C" fn combine(context: *const c_void, input: *const c_void, inout: *mut c_void, elements: u64) {
    // SAFETY: the context is a form. The addresses are those of so many elements of it.
    unsafe {
        let form = *context.cast::<Form>();
        for element in 0..elements {
            let at = form.numbers(element).map(|at| at as isize);
            let load = |from: *const u8| at.map(|at| from.offset(at).cast::<u32>().read_unaligned());
            let result = combined(load(input.cast()), load(inout.cast()));
            for (at, number) in at.into_iter().zip(result) {
                inout.cast::<u8>().offset(at).cast::<u32>().write_unaligned(number);
            }
        }
    }
}

fn operand(rank: u32, element: u64) -> Affine {
    [2 * rank + 2 * element as u32 + 3, rank * 1000 + element as u32 * 7 + 1]
}

fn fold(ranks: std::ops::Range<u32>, element: u64) -> Affine {
    ranks.map(|rank| operand(rank, element)).reduce(combined).unwrap()
}

/// What is in the gaps of input and output.
const GAP: u8 = 0x5A;

/// Memory of one argument. The address of the first element is at its place in the program's memory.
struct Argument {
    address: usize,
}

struct Shape {
    form: &'static Form,
    size: u32,
    count: u64,
    in_place: bool,
}

impl Shape {
    /// Where input and output begin in the program's memory, and its length.
    fn memory(&self) -> (Argument, Argument, usize) {
        let each = 64 + self.count as usize * self.form.extent.unsigned_abs() as usize;
        let first = if self.form.extent < 0 { each - 32 } else { 32 };
        let input = Argument { address: first };
        let output = Argument { address: if self.in_place { first } else { each + first } };
        (input, output, if self.in_place { each } else { 2 * each })
    }

    fn put(&self, user: &mut [u8], at: &Argument, element: u64, value: Affine) {
        for (offset, number) in self.form.numbers(element).into_iter().zip(value) {
            let from = at.address.wrapping_add_signed(offset as isize);
            user[from..from + 4].copy_from_slice(&number.to_ne_bytes());
        }
    }

    /// Runs the plans. `expected` holds each rank's first output elements. All other bytes must keep their contents.
    fn check(&self, random: &mut Random, build: impl Fn(&mut Plan, &Pieces), expected: impl Fn(u32) -> Vec<Affine>) {
        let (input, output, len) = self.memory();
        let initial = |rank: u32| {
            let mut user = vec![GAP; len];
            (0..self.count).for_each(|element| self.put(&mut user, &input, element, operand(rank, element)));
            user
        };
        let ranks = (0..self.size).map(|rank| {
            // SAFETY: the function may be called by any thread with a form.
            let function = unsafe { Function::new(combine, std::ptr::from_ref(self.form).cast()) };
            let mut plan = Plan { function: Some(function), ..Plan::default() };
            let elements = self.form.elements(&mut plan);
            let has_output = !expected(rank).is_empty();
            let ends =
                Ends { input: Place::User(input.address), output: has_output.then_some(Place::User(output.address)) };
            // Three elements make up a piece.
            let segment = 3 * self.form.extent.unsigned_abs();
            build(&mut plan, &Pieces { me: Me { rank, size: self.size }, elements, ends, segment });
            Rank::new(plan, initial(rank))
        });
        for (rank, user) in (0..).zip(run(ranks.collect(), random)) {
            let mut wanted = initial(rank);
            (0..).zip(expected(rank)).for_each(|(element, value)| self.put(&mut wanted, &output, element, value));
            let Shape { form, size, count, in_place } = self;
            assert_eq!(user, wanted, "rank {rank} of {size}, {count} elements of {form:?}, in place: {in_place}");
        }
    }
}

/// Calls a test with every form, and numbers of ranks and elements that do and do not fill pieces.
fn each(mut test: impl FnMut(&Shape, &mut Random)) {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for form in &FORMS {
        for size in 2..=6 {
            for count in [1, 2, 3, 7, 30, 64, 65] {
                for in_place in [false, true] {
                    test(&Shape { form, size, count, in_place }, &mut random);
                }
            }
        }
    }
}

#[test]
fn every_rank_gets_the_combination_in_the_order_of_the_ranks() {
    each(|shape, random| {
        let all: Vec<Affine> = (0..shape.count).map(|element| fold(0..shape.size, element)).collect();
        let build = |plan: &mut Plan, pieces: &Pieces| {
            pieces.exchange(plan, &Shares::even(shape.count, shape.size), Results::Everywhere);
        };
        shape.check(random, build, |_| all.clone());
        let root = shape.count as u32 % shape.size;
        let build = |plan: &mut Plan, pieces: &Pieces| {
            pieces.exchange(plan, &Shares::even(shape.count, shape.size), Results::AtRoot(root));
        };
        shape.check(random, build, |rank| if rank == root { all.clone() } else { Vec::new() });
    });
}

#[test]
fn every_rank_gets_its_share_of_the_combination() {
    each(|shape, random| {
        // Some ranks get nothing.
        let mut counts: Vec<u64> = (0..shape.size).map(|rank| shape.count * u64::from(rank % 3) / 8).collect();
        counts[0] = shape.count - counts[1..].iter().sum::<u64>().min(shape.count);
        let count = counts.iter().sum();
        let shape = Shape { count, ..*shape };
        let build = |plan: &mut Plan, pieces: &Pieces| {
            pieces.exchange(plan, &Shares::of(counts.iter().copied()), Results::Scattered);
        };
        let expected = |rank: u32| {
            let share = Shares::of(counts.iter().copied()).of_rank(rank);
            share.map(|element| fold(0..shape.size, element)).collect()
        };
        shape.check(random, build, expected);
    });
}

#[test]
fn scans_combine_the_ranks_before() {
    each(|shape, random| {
        let of = |ranks: std::ops::Range<u32>| -> Vec<Affine> {
            (0..shape.count).filter(|_| !ranks.is_empty()).map(|element| fold(ranks.clone(), element)).collect()
        };
        shape.check(random, |plan, pieces| pieces.scan(plan, shape.count, false), |rank| of(0..rank + 1));
        shape.check(random, |plan, pieces| pieces.scan(plan, shape.count, true), |rank| of(0..rank));
    });
}

/// Without other ranks, output and input are combined. In place is not defined.
#[test]
fn a_local_combination_has_the_input_first() {
    for form in &FORMS {
        for count in [1, 3, 7, 64] {
            let shape = Shape { form, size: 1, count, in_place: false };
            // Nothing initialises the output but the gap.
            let gap = u32::from_ne_bytes([GAP; 4]);
            let expected = |_| (0..count).map(|element| combined(operand(0, element), [gap, gap])).collect();
            shape.check(&mut Random(9), |plan, pieces| pieces.local(plan, count), expected);
        }
    }
}
