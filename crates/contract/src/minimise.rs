//! Delta debugging: finds a short history that still fails.

/// Shrinks `steps` while `fails` holds: leaves out halves, quarters and so on, then single steps until none can be left
/// out. `fails` must be deterministic and hold for `steps`; the result keeps the order of the steps.
pub fn minimise<T: Clone>(steps: &[T], mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    assert!(fails(steps), "only a failing history can be minimised");
    let mut best = steps.to_vec();
    let mut chunk = best.len().div_ceil(2);
    while chunk > 0 {
        let mut from = 0;
        let mut shrunk = false;
        while from < best.len() {
            let to = (from + chunk).min(best.len());
            let candidate = [&best[..from], &best[to..]].concat();
            if fails(&candidate) {
                best = candidate;
                shrunk = true;
            } else {
                from = to;
            }
        }
        if chunk > 1 {
            chunk = chunk.div_ceil(2);
        } else if !shrunk {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_stays_in_order() {
        let steps: Vec<u32> = (0..100).collect();
        let mut asked = 0;
        let shortest = minimise(&steps, |steps| {
            asked += 1;
            [17, 18, 80].iter().all(|needed| steps.contains(needed))
        });
        assert_eq!(shortest, [17, 18, 80]);
        assert!(asked < 120, "{asked} runs");
    }

    #[test]
    fn a_step_that_needs_another_goes_first() {
        // 3 without 2 does not fail, 2 without 3 does: only a second pass over single steps finds {1, 2}.
        let fails = |s: &[u32]| s.contains(&1) && (s.contains(&2) || !s.contains(&3)) && s.len() > 1;
        let shortest = minimise(&[1, 2, 3, 4], fails);
        assert_eq!(shortest.len(), 2);
    }

    #[test]
    fn a_failure_without_steps_is_empty() {
        assert!(minimise(&[1, 2, 3], |_| true).is_empty());
    }
}
