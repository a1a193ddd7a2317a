//! Read-ahead distance of one reader of a file.
//!
//! A read that begins where the last one ended is sequential. The window of a sequential reader doubles with each read up to the
//! maximum; a read elsewhere closes it. The next window is due when no more than a window is left of what was read ahead.

/// State of a reader. Numbers are pages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// Next page of a sequential reader.
    next: u64,
    /// Size of the window; 0 while the reader is not sequential.
    pages: u64,
    /// End of the pages that were read ahead.
    ahead: u64,
}

/// The first window, in pages.
const WINDOW_PAGES_MIN: u64 = 4;

impl Window {
    /// Notes a read of `first..end`. Returns the number of pages to read where one is absent.
    pub(super) fn on_read(&mut self, first: u64, end: u64, pages_max: u64) -> u64 {
        // A reader of less than a page comes back to the page in which it stopped.
        let is_sequential = first == self.next || first + 1 == self.next;
        self.pages = match (is_sequential, self.pages) {
            (false, _) => 0,
            (true, 0) => WINDOW_PAGES_MIN.min(pages_max),
            (true, _) if end == self.next => self.pages,
            (true, pages) => (pages * 2).min(pages_max),
        };
        self.next = end;
        if self.pages == 0 {
            self.ahead = 0;
        } else if self.ahead == 0 {
            // The reader itself reads the first window.
            self.ahead = first + self.pages.max(end - first);
        }
        self.pages.max(end - first)
    }

    /// The pages to read in the background now, if any: first and end.
    pub(super) fn take_ahead(&mut self, file_pages: u64) -> Option<(u64, u64)> {
        let begin = self.ahead.max(self.next);
        if self.pages == 0 || begin - self.next > self.pages {
            return None;
        }
        let end = (begin + self.pages).min(file_pages);
        self.ahead = end;
        (begin < end).then_some((begin, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_while_the_reader_goes_on() {
        let mut window = Window::default();
        let sizes: Vec<u64> = (0..6).map(|page| window.on_read(page, page + 1, 32)).collect();
        assert_eq!(sizes, [4, 8, 16, 32, 32, 32]);
        assert_eq!(window.on_read(100, 102, 32), 2, "a jump reads what it asks for");
        assert_eq!(window.on_read(102, 103, 32), 4);
        assert_eq!(window.on_read(102, 103, 32), 4, "a second half of a page is no progress");
    }

    #[test]
    fn the_next_window_is_read_when_one_is_left() {
        let mut window = Window::default();
        window.on_read(0, 1, 8);
        assert_eq!(window.take_ahead(100), Some((4, 8)), "the reader reads the first window itself");
        window.on_read(1, 2, 8);
        assert_eq!(window.take_ahead(100), Some((8, 16)));
        for page in 2..7 {
            window.on_read(page, page + 1, 8);
            assert_eq!(window.take_ahead(100), None, "more than a window is there");
        }
        window.on_read(7, 8, 8);
        assert_eq!(window.take_ahead(20), Some((16, 20)), "no further than the file");
        window.on_read(50, 51, 8);
        assert_eq!(window.take_ahead(100), None, "a jump");
    }
}
