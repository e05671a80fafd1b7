//! Sums of whole quotients along a line, in as many steps as Euclid's algorithm takes.
//!
//! The sums may leave 128 bits on the way, and wrap: what is made of them fits, and nothing is divided that has wrapped.

/// Sums over x from 0 to `n`, of q = floor((a x + b) / c).
#[derive(Clone, Copy, Default)]
struct Sums {
    /// Of q.
    plain: u128,
    /// Of 2 x q.
    weighted: u128,
    /// Of q squared.
    squared: u128,
}

/// The sum over `count` limits, `step` apart from `first` on, of the bytes below each limit, where of every `stride` bytes the
/// first `width` count. Modulo 2^64.
pub(crate) fn sum_below(count: u128, first: u128, step: u128, stride: u128, width: u128) -> u128 {
    let last = count - 1;
    let full = sums(last, step, first, stride);
    // A quotient that is larger by one where a limit lies past the width: there the whole width counts.
    let past = sums(last, step, first + stride - width, stride);
    let less = |a: u128, b: u128| a.wrapping_sub(b);
    let beyond = less(past.plain, full.plain);
    let twice_limits = first.wrapping_mul(2 * count).wrapping_add(step.wrapping_mul(last * count));
    let twice_limits_beyond =
        first.wrapping_mul(2).wrapping_mul(beyond).wrapping_add(step.wrapping_mul(less(past.weighted, full.weighted)));
    // For d of 0 or 1, 2 q d = (q + d)^2 - q^2 - d.
    let twice_quotients_beyond = less(less(past.squared, full.squared), beyond);
    let rows = width.wrapping_mul(2).wrapping_mul(past.plain);
    let short = less(twice_limits, stride.wrapping_mul(2).wrapping_mul(full.plain));
    let not_short = less(twice_limits_beyond, stride.wrapping_mul(twice_quotients_beyond));
    rows.wrapping_add(less(short, not_short)) / 2
}

/// Counts the points below a line, or turns it around its diagonal and counts those above.
fn sums(n: u128, a: u128, b: u128, c: u128) -> Sums {
    let mul = u128::wrapping_mul;
    let points = n + 1;
    if a >= c || b >= c {
        let (up, over) = (a / c, b / c);
        let rest = sums(n, a % c, b % c, c);
        let twice_sum = n * points;
        let squares = mul(twice_sum, 2 * n + 1) / 6;
        let add = u128::wrapping_add;
        let cross = add(mul(mul(up, over), twice_sum), add(mul(2 * over, rest.plain), mul(up, rest.weighted)));
        return Sums {
            plain: add(rest.plain, add(mul(up, twice_sum / 2), mul(points, over))),
            weighted: add(rest.weighted, add(mul(mul(2, up), squares), mul(over, twice_sum))),
            squared: add(rest.squared, add(add(mul(mul(up, up), squares), mul(mul(over, over), points)), cross)),
        };
    }
    let m = (a * n + b) / c;
    if m == 0 {
        return Sums::default();
    }
    let turned = sums(m - 1, c, c - b - 1, a);
    let (sub, area) = (u128::wrapping_sub, n * m);
    let plain = sub(area, turned.plain);
    Sums {
        plain,
        weighted: sub(mul(area, points), turned.squared.wrapping_add(turned.plain)),
        squared: sub(sub(mul(area, m + 1), turned.weighted.wrapping_add(mul(2, turned.plain))), plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_quotients_agree_with_adding_them_up() {
        for (n, a, b, c) in (0..6)
            .flat_map(|n| (0..9).flat_map(move |a| (0..9).map(move |b| (n, a, b))))
            .flat_map(|(n, a, b)| (1..9).map(move |c| (n, a, b, c)))
        {
            let quotients = || (0..=n).map(|x| (x, (a * x + b) / c));
            let found = sums(n, a, b, c);
            assert_eq!(found.plain, quotients().map(|(_, q)| q).sum::<u128>());
            assert_eq!(found.weighted, quotients().map(|(x, q)| 2 * x * q).sum::<u128>());
            assert_eq!(found.squared, quotients().map(|(_, q)| q * q).sum::<u128>());
        }
    }
}
