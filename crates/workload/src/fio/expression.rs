//! Arithmetic in numbers, in the form that fio documents: an expression in parentheses, such as `(2*1g)` or
//! `((4+4)*1k)`.
//!
//! Place in the data flow: `value` evaluates a text that begins with a parenthesis, and supplies the factor of a
//! literal's suffix.
//!
//! Invariants: intermediate values are exact fractions, so `(7/2*2)` is 7; the final value is truncated to a whole
//! number. An overflow, a division by zero or a negative final value gives no number.

/// Maximum nesting depth of parentheses, signs and powers.
const DEPTH_MAX: u32 = 64;

/// A fraction in lowest terms, with a positive denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fraction {
    over: i128,
    under: i128,
}

impl Fraction {
    fn new(over: i128, under: i128) -> Option<Self> {
        if under == 0 {
            return None;
        }
        let (mut a, mut b) = (over.checked_abs()?, under.checked_abs()?);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let sign = if under < 0 { -1 } else { 1 };
        Some(Self { over: sign * over / a.max(1), under: sign * under / a.max(1) })
    }

    fn apply(self, operator: u8, other: Self) -> Option<Self> {
        let (a, b, c, d) = (self.over, self.under, other.over, other.under);
        let mul = |x: i128, y: i128| x.checked_mul(y);
        match operator {
            b'+' => Self::new(mul(a, d)?.checked_add(mul(c, b)?)?, mul(b, d)?),
            b'-' => Self::new(mul(a, d)?.checked_sub(mul(c, b)?)?, mul(b, d)?),
            b'*' => Self::new(mul(a, c)?, mul(b, d)?),
            b'/' => Self::new(mul(a, d)?, mul(b, c)?),
            // Remainders and powers are defined for whole numbers only.
            b'%' if b == 1 && d == 1 => Self::new(a.checked_rem(c)?, 1),
            b'^' if d == 1 => {
                let power = u32::try_from(c).ok()?;
                Self::new(a.checked_pow(power)?, b.checked_pow(power)?)
            }
            _ => None,
        }
    }
}

/// Evaluates an expression in parentheses and truncates it to a whole number. `worth` returns the factor of a suffix.
/// The factor of the empty suffix is applied once to the result, and only if no literal has a suffix, as in fio.
pub(super) fn evaluate(text: &str, worth: &dyn Fn(&str) -> Option<u64>) -> Option<u64> {
    let mut reader = Reader { rest: text.trim().as_bytes(), worth, depth: 0, has_suffix: false };
    let mut value = reader.operand()?;
    reader.blanks();
    reader.rest.is_empty().then_some(())?;
    if !reader.has_suffix {
        value = value.apply(b'*', Fraction { over: i128::from(worth("")?), under: 1 })?;
    }
    u64::try_from(value.over / value.under).ok().filter(|_| value.over >= 0)
}

struct Reader<'a> {
    rest: &'a [u8],
    worth: &'a dyn Fn(&str) -> Option<u64>,
    depth: u32,
    has_suffix: bool,
}

impl Reader<'_> {
    fn blanks(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    fn take(&mut self, one_of: &[u8]) -> Option<u8> {
        self.blanks();
        let (first, rest) = self.rest.split_first().filter(|(first, _)| one_of.contains(first))?;
        self.rest = rest;
        Some(*first)
    }

    fn sum(&mut self) -> Option<Fraction> {
        let mut value = self.product()?;
        while let Some(operator) = self.take(b"+-") {
            value = value.apply(operator, self.product()?)?;
        }
        Some(value)
    }

    fn product(&mut self) -> Option<Fraction> {
        let mut value = self.power()?;
        while let Some(operator) = self.take(b"*/%") {
            value = value.apply(operator, self.power()?)?;
        }
        Some(value)
    }

    fn power(&mut self) -> Option<Fraction> {
        let value = self.operand()?;
        let Some(operator) = self.take(b"^") else { return Some(value) };
        // The power on the right is a part of this one.
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let power = self.power()?;
        self.depth -= 1;
        value.apply(operator, power)
    }

    fn operand(&mut self) -> Option<Fraction> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let value = if self.take(b"(").is_some() {
            let value = self.sum()?;
            self.take(b")")?;
            value
        } else if self.take(b"-").is_some() {
            Fraction { over: 0, under: 1 }.apply(b'-', self.operand()?)?
        } else {
            self.literal()?
        };
        self.depth -= 1;
        Some(value)
    }

    /// Parses digits, optionally with a point and more digits, or hexadecimal digits after `0x`; then a suffix.
    fn literal(&mut self) -> Option<Fraction> {
        self.blanks();
        let text = std::str::from_utf8(self.rest).ok()?;
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(text.len());
        let word = &text[..end];
        self.rest = &self.rest[end..];
        if let Some(digits) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            return Fraction::new(i128::from(u64::from_str_radix(digits, 16).ok()?), 1);
        }
        let end = word.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(word.len());
        let (number, suffix) = word.split_at(end);
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let under = 10i128.checked_pow(u32::try_from(part.len()).ok()?)?;
        let digits: i128 = format!("{whole}{part}").parse().ok()?;
        if suffix.is_empty() {
            return Fraction::new(digits, under);
        }
        self.has_suffix = true;
        Fraction::new(digits.checked_mul(i128::from((self.worth)(suffix)?))?, under)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_have_their_values() {
        let worth = |suffix: &str| match suffix {
            "" => Some(1),
            "k" => Some(1024),
            "g" => Some(1 << 30),
            _ => None,
        };
        for (text, value) in [
            ("(4*1024)", Some(4096)),
            ("(2*1g)", Some(2 << 30)),
            (" ( 2k + 512 ) ", Some(2560)),
            ("((4+4)*1k)", Some(8192)),
            ("(2+3*4^2)", Some(50)),
            ("(2^3^2)", Some(512)),
            ("(10-4-3)", Some(3)),
            ("(10%4)", Some(2)),
            ("(7/2)", Some(3)),
            ("(7/2*2)", Some(7)),
            ("(1.5k*2)", Some(3072)),
            ("(-1+5)", Some(4)),
            ("(0x10*2)", Some(32)),
            ("(1-2)", None),
            ("(1/0)", None),
            ("(1%0)", None),
            ("(2^200)", None),
            ("(2^-1)", None),
            ("(4q)", None),
            ("(4k", None),
            ("(4k))", None),
            ("(4k)k", None),
            ("()", None),
            ("(4 5)", None),
            ("(1.2.3)", None),
            ("(.)", None),
        ] {
            assert_eq!(evaluate(text, &worth), value, "{text}");
        }
        for deep in ["(".repeat(100_000), "(1".to_owned() + &"^1".repeat(200_000), "-".repeat(100_000)] {
            assert_eq!(evaluate(&(deep + "1"), &worth), None, "no stack is that deep");
        }
    }
}
