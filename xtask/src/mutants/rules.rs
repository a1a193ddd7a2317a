//! The rules that make mutants: their sites in a file, and the text of the file with all of them in it.
//!
//! Place: [`super::copy`] passes the text of a file and gets the mutated text.
//!
//! Invariants: text is only inserted, so that without an active mutant each expression is what it was; a mutant is one change at one
//! site; the same text has the same mutants in the same order.
//!
//! Deliberately absent: types. A mutant that the compiler refuses is left out afterwards ([`super::copy`]).

use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Block, Expr, Lit, Pat, ReturnType, Stmt};

/// Kind of a mutant's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operator {
    ConditionTrue,
    ConditionFalse,
    OperandDropped,
    AnswerTrue,
    AnswerFalse,
    CallSkipped,
    AssignmentSkipped,
    OrderSwapped,
    OffByOne,
    LiteralFlipped,
    ValueDropped,
    ExtremeSwapped,
}

impl Operator {
    /// All operators, with names and meanings.
    pub(crate) const ALL: [(Self, &str, &str); 12] = [
        (Self::ConditionTrue, "condition-true", "the condition of an `if` or a guard holds always"),
        (Self::ConditionFalse, "condition-false", "the condition of an `if`, `while` or a guard never holds"),
        (Self::OperandDropped, "operand-dropped", "one operand of `&&` or `||` is not asked"),
        (Self::AnswerTrue, "answer-true", "a function that answers yes or no answers yes"),
        (Self::AnswerFalse, "answer-false", "a function that answers yes or no answers no"),
        (Self::CallSkipped, "call-skipped", "a call, or a wait, whose value is not used does not happen"),
        (Self::AssignmentSkipped, "assignment-skipped", "an assignment does not happen"),
        (Self::OrderSwapped, "order-swapped", "two statements, one of them a call, change places"),
        (Self::OffByOne, "off-by-one", "`<` and `<=`, `>` and `>=` are confused, `+ 1` or `- 1` is left out"),
        (Self::LiteralFlipped, "literal-flipped", "`true` is false, and `false` true"),
        (Self::ValueDropped, "value-dropped", "`Some(…)` is `None`"),
        (Self::ExtremeSwapped, "extreme-swapped", "`min` and `max` are confused"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(operator, ..)| *operator == self).expect("it is listed").1
    }
}

/// One change at one place.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    pub(crate) operator: Operator,
    /// `Type::function`.
    pub(crate) function: String,
    /// Line in the source, from 1.
    pub(crate) line: usize,
    pub(crate) original: String,
    pub(crate) mutated: String,
}

/// The way in which mutants are written around a piece of text.
#[derive(Clone, Debug)]
enum Shape {
    /// A value of type `bool`, with a mutant that makes it true, one that makes it false, or both.
    Choice { yes: Option<usize>, no: Option<usize> },
    /// A condition with a `let`, which never holds.
    LetFalse(usize),
    /// The opposite of a literal.
    Flip(usize),
    /// A statement or an expression without a value, which does not happen; `true` if a semicolon has to be added.
    Skip(usize, bool),
    /// Other texts of an expression.
    Others(Vec<(usize, String)>),
    /// Other orders of statements.
    Orders(Vec<(usize, String)>),
    /// A body that returns at once.
    Answers(Vec<(usize, bool)>),
}

#[derive(Clone, Debug)]
struct Site {
    range: Range<usize>,
    shape: Shape,
}

/// The mutants of a file.
#[derive(Debug)]
pub(crate) struct Mutants {
    text: String,
    pub(crate) all: Vec<Mutant>,
    sites: Vec<Site>,
}

/// The mutated text, and the place of each mutant in it: an error of the compiler in a place is caused by one of its mutants.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// Places with their mutants; inner and narrower places have fewer.
    pub(crate) places: Vec<(Range<usize>, Vec<usize>)>,
}

/// All mutants of the text of a file.
pub(crate) fn mutants_of(text: &str) -> Result<Mutants, String> {
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let mut finder = Finder { text, context: Vec::new(), mutants: Vec::new(), sites: Vec::new() };
    finder.visit_file(&file);
    let Finder { mutants, sites, .. } = finder;
    Ok(Mutants { text: text.into(), all: mutants, sites })
}

impl Mutants {
    /// Hash of the text (FNV-1a).
    pub(crate) fn print(&self) -> u64 {
        self.text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// The text with the mutants that have a number.
    pub(crate) fn render(&self, id: impl Fn(usize) -> Option<u32>) -> Rendered {
        let written: Vec<Around> = self.sites.iter().map(|site| Around::of(&site.shape, &id)).collect();
        let mut ends = Vec::new();
        for (at, site) in self.sites.iter().enumerate().filter(|(at, _)| !written[*at].before.is_empty()) {
            let (start, end, order) = (site.range.start, site.range.end, at as isize);
            // At one position ends come first, inner before outer; then beginnings, outer before inner.
            ends.push((end, false, -(start as isize), -order, at));
            ends.push((start, true, -(end as isize), order, at));
        }
        ends.sort_unstable();
        let mut out = Rendered::default();
        let mut began: Vec<Option<usize>> = vec![None; self.sites.len()];
        let mut from = 0;
        for (position, is_start, .., at) in ends {
            out.text += &self.text[from..position];
            from = position;
            if is_start {
                let start = out.text.len();
                began[at] = Some(start);
                out.text += &written[at].before;
                for (range, mutant) in &written[at].alone {
                    out.places.push((start + range.start..start + range.end, vec![*mutant]));
                }
                continue;
            }
            out.text += &written[at].after;
            // A site of no length has only a text before it, and its end is seen first.
            if let Some(start) = began[at] {
                let has_number = |mutant: &usize| id(*mutant).is_some();
                let mutants = self.mutants_at(at).into_iter().filter(has_number).collect();
                out.places.push((start..out.text.len(), mutants));
            }
        }
        out.text += &self.text[from..];
        out
    }

    fn mutants_at(&self, site: usize) -> Vec<usize> {
        match &self.sites[site].shape {
            Shape::Choice { yes, no } => yes.iter().chain(no).copied().collect(),
            Shape::LetFalse(mutant) | Shape::Flip(mutant) | Shape::Skip(mutant, _) => vec![*mutant],
            Shape::Others(texts) | Shape::Orders(texts) => texts.iter().map(|(mutant, _)| *mutant).collect(),
            Shape::Answers(answers) => answers.iter().map(|(mutant, _)| *mutant).collect(),
        }
    }
}

/// Texts before and after a site.
#[derive(Debug, Default)]
struct Around {
    before: String,
    after: String,
    /// Parts of `before` that belong to one mutant alone.
    alone: Vec<(Range<usize>, usize)>,
}

impl Around {
    fn of(shape: &Shape, id: impl Fn(usize) -> Option<u32>) -> Self {
        let is = |mutant: usize| Some(format!("flashweir_core::mutant::is({})", id(mutant)?));
        let mut around = Self::default();
        let Self { before, after, alone } = &mut around;
        match shape {
            Shape::Choice { yes, no } => {
                let yes = yes.and_then(is).map(|is| format!("{is} || "));
                let no = no.and_then(is).map(|is| format!("!{is} && "));
                if yes.is_some() || no.is_some() {
                    *before = format!("({}({}(", yes.unwrap_or_default(), no.unwrap_or_default());
                    *after = ")))".into();
                }
            }
            Shape::LetFalse(mutant) => {
                *before = is(*mutant).map(|is| format!("!{is} && ")).unwrap_or_default()
            }
            Shape::Flip(mutant) => {
                if let Some(is) = is(*mutant) {
                    (*before, *after) = ("(".into(), format!(" ^ {is})"));
                }
            }
            Shape::Skip(mutant, ends) => {
                if let Some(is) = is(*mutant) {
                    *before = format!("if !{is} {{ ");
                    *after = if *ends { "; }" } else { " }" }.into();
                }
            }
            Shape::Others(texts) | Shape::Orders(texts) => {
                let (begin, end) = if matches!(shape, Shape::Others(_)) { ("(", " })") } else { ("", " }") };
                for (mutant, text) in texts {
                    let Some(is) = is(*mutant) else { continue };
                    if before.is_empty() {
                        *before += begin;
                    }
                    let from = before.len();
                    *before += &format!("if {is} {{ {text} }} else ");
                    alone.push((from..before.len(), *mutant));
                }
                if !before.is_empty() {
                    *before += "{ ";
                    *after = end.into();
                }
            }
            Shape::Answers(answers) => {
                for (mutant, answer) in answers {
                    let Some(is) = is(*mutant) else { continue };
                    let from = before.len();
                    *before += &format!(" if {is} {{ return {answer}; }}");
                    alone.push((from..before.len(), *mutant));
                }
            }
        }
        around
    }
}

/// Words of code on which no promise depends, of our own checks, and of planted bugs.
const NO_PART: [&str; 17] = [
    "metrics",
    "metric",
    "stats",
    "trace",
    "audit",
    "planted",
    "has_planted",
    "PlantedBug",
    "Planted",
    "prefetch",
    "reserve",
    "reserve_exact",
    "shrink_to_fit",
    "depths",
    "busy_ns",
    "histogram",
    "cpu",
];

/// Beginnings of the names of functions without mutants. A judge relies on `losses_max`.
const NO_FUNCTIONS: [&str; 8] =
    ["audit", "assert", "describe", "trace", "metrics", "fmt", "stats", "losses_max"];

/// Whether the text has no influence on what survives a power cut.
fn no_part(text: &str) -> bool {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.into_iter().any(|word| NO_PART.contains(&word))
}

struct Finder<'a> {
    text: &'a str,
    /// Types, traits and functions around what is visited.
    context: Vec<String>,
    mutants: Vec<Mutant>,
    sites: Vec<Site>,
}

fn range(of: impl Spanned) -> Range<usize> {
    of.span().byte_range()
}

/// Whether an expression is a call, also one that is awaited or whose error is passed on.
fn is_call(expr: &Expr) -> bool {
    match expr {
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Await(_) => true,
        Expr::Try(tried) => is_call(&tried.expr),
        _ => false,
    }
}

/// The place that an assignment assigns to.
fn assigned(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Assign(assign) => Some(&assign.left),
        Expr::Binary(binary) if is_compound(&binary.op) => Some(&binary.left),
        _ => None,
    }
}

fn is_compound(op: &BinOp) -> bool {
    matches!(
        op,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
    )
}

fn is_one(expr: &Expr) -> bool {
    matches!(expr, Expr::Lit(lit) if matches!(&lit.lit, Lit::Int(int) if int.base10_digits() == "1"))
}

/// Gathers the operands of a chain of `&&`, or of `||`.
fn operands<'e>(expr: &'e Expr, is_and: bool, out: &mut Vec<&'e Expr>) {
    match expr {
        Expr::Binary(binary)
            if matches!((&binary.op, is_and), (BinOp::And(_), true) | (BinOp::Or(_), false)) =>
        {
            operands(&binary.left, is_and, out);
            operands(&binary.right, is_and, out);
        }
        _ => out.push(expr),
    }
}

/// Whether a condition binds names.
fn has_let(expr: &Expr) -> bool {
    let mut all = Vec::new();
    operands(expr, true, &mut all);
    all.iter().any(|operand| matches!(operand, Expr::Let(_)))
}

/// Whether attributes mark an item as for tests.
fn is_for_tests(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let path = attr.path();
        path.is_ident("test")
            || path.is_ident("cfg")
                && matches!(&attr.meta, syn::Meta::List(list) if list.tokens.to_string().contains("test"))
    })
}

fn is_bool(output: &ReturnType) -> bool {
    matches!(output, ReturnType::Type(_, ty) if matches!(&**ty, syn::Type::Path(path) if path.path.is_ident("bool")))
}

impl<'a> Finder<'a> {
    fn slice(&self, range: &Range<usize>) -> &'a str {
        &self.text[range.clone()]
    }

    fn text_of(&self, of: impl Spanned) -> &'a str {
        self.slice(&range(of))
    }

    /// Adds a mutant, with its texts on one line.
    fn add(&mut self, operator: Operator, at: &Range<usize>, original: &str, mutated: &str) -> usize {
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let line = self.text[..at.start].matches('\n').count() + 1;
        let function = self.context.join("::");
        self.mutants.push(Mutant {
            operator,
            function,
            line,
            original: flat(original),
            mutated: flat(mutated),
        });
        self.mutants.len() - 1
    }

    fn site(&mut self, range: Range<usize>, shape: Shape) {
        self.sites.push(Site { range, shape });
    }

    /// Mutates the condition of an `if`, a `while` or a guard, and its parts.
    fn condition(&mut self, cond: &Expr, may_hold_always: bool) {
        let range = range(cond);
        let text = self.slice(&range);
        let is_chain =
            matches!(cond, Expr::Binary(binary) if matches!(binary.op, BinOp::And(_) | BinOp::Or(_)));
        if has_let(cond) {
            if !no_part(text) {
                let mutant = self.add(Operator::ConditionFalse, &range, text, "false");
                self.site(range, Shape::LetFalse(mutant));
            }
        } else if is_chain || !no_part(text) {
            let yes = may_hold_always.then(|| self.add(Operator::ConditionTrue, &range, text, "true"));
            let no = Some(self.add(Operator::ConditionFalse, &range, text, "false"));
            self.site(range, Shape::Choice { yes, no });
        }
        self.visit_expr(cond);
    }

    fn function(&mut self, attrs: &[syn::Attribute], sig: &syn::Signature, block: &Block) {
        let name = sig.ident.to_string();
        if is_for_tests(attrs)
            || sig.constness.is_some()
            || NO_FUNCTIONS.iter().any(|beginning| name.starts_with(beginning))
            || no_part(&name)
        {
            return;
        }
        self.context.push(name);
        if is_bool(&sig.output) && !block.stmts.is_empty() {
            let inside = range(block);
            let at = inside.start + 1..inside.start + 1;
            let original = self.slice(&inside);
            let line = range(&sig.ident);
            let mut answers = Vec::new();
            // A function that returns a literal has the mutant of the literal too.
            for (operator, answer) in [(Operator::AnswerTrue, true), (Operator::AnswerFalse, false)] {
                // Such a body gives this answer already.
                if original.trim_matches(['{', '}', ' ', '\n']) == answer.to_string() {
                    continue;
                }
                let mutated = format!("{{ return {answer}; }}");
                answers.push((self.add(operator, &line, original, &mutated), answer));
            }
            self.site(at, Shape::Answers(answers));
        }
        self.block(block, matches!(sig.output, ReturnType::Default));
        self.context.pop();
    }

    /// Mutates the statements of a block; `is_unit` if its last expression has no value.
    fn block(&mut self, block: &Block, is_unit: bool) {
        let last = block.stmts.len().saturating_sub(1);
        self.orders(block, is_unit);
        for (at, stmt) in block.stmts.iter().enumerate() {
            match stmt {
                Stmt::Expr(expr, semi) => {
                    let has_no_value = semi.is_some() || at < last || is_unit;
                    if has_no_value {
                        self.statement(expr, range(stmt), semi.is_none());
                    } else {
                        self.visit_expr(expr);
                    }
                }
                Stmt::Local(local) => {
                    if let (Pat::Wild(_), Some(init)) = (&local.pat, &local.init)
                        && is_call(&init.expr)
                    {
                        self.skip(Operator::CallSkipped, &init.expr, range(stmt), false);
                    }
                    self.visit_local(local);
                }
                Stmt::Item(item) => self.visit_item(item),
                Stmt::Macro(_) => {}
            }
        }
    }

    /// Mutates an expression in the place of a statement.
    fn statement(&mut self, expr: &Expr, whole: Range<usize>, ends: bool) {
        match expr {
            Expr::If(choice) => self.choice(choice, true),
            Expr::Match(choice) => {
                self.visit_expr(&choice.expr);
                choice.arms.iter().for_each(|arm| self.arm(arm, true));
            }
            Expr::Block(block) => self.block(&block.block, true),
            _ => {
                if is_call(expr) {
                    self.skip(Operator::CallSkipped, expr, whole, ends);
                } else if assigned(expr).is_some() {
                    self.skip(Operator::AssignmentSkipped, expr, whole, ends);
                }
                self.visit_expr(expr);
            }
        }
    }

    fn skip(&mut self, operator: Operator, expr: &Expr, whole: Range<usize>, ends: bool) {
        if !no_part(self.named(expr)) {
            let text = self.slice(&whole);
            let mutant = self.add(operator, &whole, text, "");
            self.site(whole, Shape::Skip(mutant, ends));
        }
    }

    /// The called function, or the place that is assigned to, without arguments, which have mutants of their own.
    fn named(&self, expr: &Expr) -> &'a str {
        match expr {
            Expr::Call(call) => self.text_of(&call.func),
            Expr::MethodCall(call) => {
                let start = range(&call.receiver).start;
                self.slice(&(start..range(&call.method).end))
            }
            Expr::Await(awaited) => self.named(&awaited.base),
            Expr::Try(tried) => self.named(&tried.expr),
            _ => match assigned(expr) {
                Some(left) => self.text_of(left),
                None => self.text_of(expr),
            },
        }
    }

    /// Swaps neighbours that are calls or assignments, at least one of them a call.
    fn orders(&mut self, block: &Block, is_unit: bool) {
        let last = block.stmts.len().saturating_sub(1);
        let plain = |(at, stmt): (usize, &'_ Stmt)| match stmt {
            Stmt::Expr(expr, semi) if semi.is_some() || at == last && is_unit => {
                let is_call = is_call(expr);
                (is_call || assigned(expr).is_some() && semi.is_some())
                    .then(|| (range(stmt), is_call, no_part(self.named(expr)), semi.is_none()))
            }
            _ => None,
        };
        let all: Vec<_> = block.stmts.iter().enumerate().map(plain).collect();
        for run in all.split(Option::is_none).map(|run| run.iter().flatten().collect::<Vec<_>>()) {
            let (Some(first), Some(end)) = (run.first(), run.last()) else { continue };
            let whole = first.0.start..end.0.end;
            let one = |at: usize| {
                let (range, .., ends) = run[at];
                self.slice(range).to_string() + if *ends { ";" } else { "" }
            };
            let mut found = Vec::new();
            for at in 1..run.len() {
                let (a, b) = (run[at - 1], run[at]);
                if !(a.1 || b.1) || a.2 || b.2 || self.slice(&a.0) == self.slice(&b.0) {
                    continue;
                }
                let mut order: Vec<usize> = (0..run.len()).collect();
                order.swap(at - 1, at);
                let text = order.into_iter().map(one).collect::<Vec<_>>().join(" ");
                found.push((a.0.start..b.0.end, format!("{} {}", one(at), one(at - 1)), text));
            }
            if found.is_empty() {
                continue;
            }
            let mut texts = Vec::new();
            for (pair, swapped, text) in found {
                texts.push((self.add(Operator::OrderSwapped, &pair, self.slice(&pair), &swapped), text));
            }
            self.site(whole, Shape::Orders(texts));
        }
    }

    fn choice(&mut self, choice: &syn::ExprIf, is_unit: bool) {
        self.condition(&choice.cond, true);
        // Code of a planted bug is not mutated.
        let text = self.text_of(&choice.cond);
        if !(no_part(text) && text.contains("lanted") && !text.contains("!self.has_planted")) {
            self.block(&choice.then_branch, is_unit);
        }
        if let Some((_, other)) = &choice.else_branch {
            match &**other {
                Expr::If(other) => self.choice(other, is_unit),
                Expr::Block(other) => self.block(&other.block, is_unit),
                other => self.visit_expr(other),
            }
        }
    }

    fn arm(&mut self, arm: &Arm, is_unit: bool) {
        if let Pat::Guard(guarded) = &arm.pat {
            self.condition(&guarded.guard, true);
        }
        if is_unit {
            self.statement(&arm.body, range(&arm.body), true);
        } else {
            self.visit_expr(&arm.body);
        }
    }

    fn others(&mut self, operator: Operator, whole: Range<usize>, text: String) {
        let original = self.slice(&whole);
        if !no_part(original) {
            let mutant = self.add(operator, &whole, original, &text);
            self.site(whole, Shape::Others(vec![(mutant, text)]));
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        const NO_TRAITS: [&str; 4] = ["Debug", "Display", "Error", "Default"];
        let of = item
            .trait_
            .as_ref()
            .and_then(|(path, _)| path.segments.last())
            .map(|last| last.ident.to_string());
        if is_for_tests(&item.attrs) || of.is_some_and(|of| NO_TRAITS.contains(&of.as_str())) {
            return;
        }
        let name = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.context.push(name.unwrap_or_else(|| "impl".into()));
        visit::visit_item_impl(self, item);
        self.context.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
    }

    fn visit_block(&mut self, block: &'ast Block) {
        self.block(block, false);
    }

    fn visit_expr_if(&mut self, choice: &'ast syn::ExprIf) {
        self.choice(choice, false);
    }

    fn visit_expr_while(&mut self, turns: &'ast syn::ExprWhile) {
        self.condition(&turns.cond, false);
        self.block(&turns.body, true);
    }

    fn visit_expr_for_loop(&mut self, turns: &'ast syn::ExprForLoop) {
        self.visit_expr(&turns.expr);
        self.block(&turns.body, true);
    }

    fn visit_expr_loop(&mut self, turns: &'ast syn::ExprLoop) {
        self.block(&turns.body, true);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        self.arm(arm, false);
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let whole = range(binary);
        let (left, right) = (self.text_of(&binary.left), self.text_of(&binary.right));
        match binary.op {
            BinOp::And(_) | BinOp::Or(_) => {
                let is_and = matches!(binary.op, BinOp::And(_));
                let mut all = Vec::new();
                operands(&binary.left, is_and, &mut all);
                operands(&binary.right, is_and, &mut all);
                for operand in all {
                    let at = range(operand);
                    let text = self.slice(&at);
                    if !matches!(operand, Expr::Let(_)) && !no_part(text) {
                        let word = if is_and { "true" } else { "false" };
                        let original = format!("{text} in {}", self.slice(&whole));
                        let mutant = self.add(Operator::OperandDropped, &at, &original, word);
                        let (yes, no) = if is_and { (Some(mutant), None) } else { (None, Some(mutant)) };
                        self.site(at, Shape::Choice { yes, no });
                    }
                    self.visit_expr(operand);
                }
                return;
            }
            BinOp::Lt(_) => self.others(Operator::OffByOne, whole, format!("{left} <= {right}")),
            BinOp::Le(_) => self.others(Operator::OffByOne, whole, format!("{left} < {right}")),
            BinOp::Gt(_) => self.others(Operator::OffByOne, whole, format!("{left} >= {right}")),
            BinOp::Ge(_) => self.others(Operator::OffByOne, whole, format!("{left} > {right}")),
            BinOp::Add(_) | BinOp::Sub(_) if is_one(&binary.right) => {
                self.others(Operator::OffByOne, whole, left.into());
            }
            _ => {}
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        let other = match name.as_str() {
            "min" => Some("max"),
            "max" => Some("min"),
            "min_by_key" => Some("max_by_key"),
            "max_by_key" => Some("min_by_key"),
            _ => None,
        };
        if let Some(other) = other {
            let (whole, method) = (range(call), range(&call.method));
            let (before, after) = (&self.text[whole.start..method.start], &self.text[method.end..whole.end]);
            self.others(Operator::ExtremeSwapped, whole, format!("{before}{other}{after}"));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if matches!(&*call.func, Expr::Path(path) if path.path.is_ident("Some")) {
            self.others(Operator::ValueDropped, range(call), "None".into());
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_lit(&mut self, lit: &'ast syn::ExprLit) {
        if let Lit::Bool(value) = &lit.lit {
            let at = range(lit);
            // The line tells the literal from others.
            let line = self.text[..at.start].rfind('\n').map_or(0, |newline| newline + 1);
            let end = self.text[at.end..].find('\n').map_or(self.text.len(), |length| at.end + length);
            let around = self.text[line..end].trim();
            if !no_part(around) {
                let original = format!("{} in {around}", value.value);
                let mutant = self.add(Operator::LiteralFlipped, &at, &original, &(!value.value).to_string());
                self.site(at, Shape::Flip(mutant));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
struct Log { next: u32, is_open: bool }
impl Log {
    const EMPTY: bool = false;
    async fn push(&mut self, upto: u32) {
        if self.is_open && upto > self.next {
            self.write(upto).await;
            self.metrics.pushes += 1;
            self.next = upto.min(9);
            self.wait().await;
        }
        while let Some(one) = self.pop() { self.free(one) }
        match upto {
            0 if self.is_full() => self.wrap(),
            _ => {}
        }
    }
    fn is_full(&self) -> bool {
        self.next + 1 >= 8 || self.has_planted(PlantedBug::Full)
    }
    fn open(&mut self) -> Option<u32> {
        debug_assert!(self.next < 1 && true);
        self.is_open = true;
        Some(self.next)
    }
}
#[cfg(test)]
mod tests { fn none() -> bool { true && false } }
"#;

    fn found() -> Vec<String> {
        let mutants = mutants_of(TEXT).expect("it parses");
        let line =
            |m: &Mutant| format!("{} {}: {} → {}", m.function, m.operator.name(), m.original, m.mutated);
        mutants.all.iter().map(line).collect()
    }

    #[test]
    fn each_operator_finds_its_sites_and_nothing_else() {
        let chain = "self.is_open && upto > self.next";
        let push = [
            "condition-true: CHAIN → true",
            "condition-false: CHAIN → false",
            "operand-dropped: self.is_open in CHAIN → true",
            "operand-dropped: upto > self.next in CHAIN → true",
            "off-by-one: upto > self.next → upto >= self.next",
            "order-swapped: self.next = upto.min(9); self.wait().await; → self.wait().await; self.next = upto.min(9);",
            "call-skipped: self.write(upto).await; → ",
            "assignment-skipped: self.next = upto.min(9); → ",
            "extreme-swapped: upto.min(9) → upto.max(9)",
            "call-skipped: self.wait().await; → ",
            "condition-false: let Some(one) = self.pop() → false",
            "call-skipped: self.free(one) → ",
            "condition-true: self.is_full() → true",
            "condition-false: self.is_full() → false",
            "call-skipped: self.wrap() → ",
        ];
        // No promise depends on metrics, so nothing is swapped with them.
        let push = push.iter().map(|one| format!("Log::push {}", one.replace("CHAIN", chain)));
        let full = "self.next + 1 >= 8 || self.has_planted(PlantedBug::Full)";
        let is_full = [
            format!("answer-true: {{ {full} }} → {{ return true; }}"),
            format!("answer-false: {{ {full} }} → {{ return false; }}"),
            format!("operand-dropped: self.next + 1 >= 8 in {full} → false"),
            "off-by-one: self.next + 1 >= 8 → self.next + 1 > 8".into(),
            "off-by-one: self.next + 1 → self.next".into(),
        ];
        let is_full = is_full.into_iter().map(|one| format!("Log::is_full {one}"));
        let open = [
            "assignment-skipped: self.is_open = true; → ",
            "literal-flipped: true in self.is_open = true; → false",
            "value-dropped: Some(self.next) → None",
        ];
        let open = open.into_iter().map(|one| format!("Log::open {one}"));
        assert_eq!(found(), push.chain(is_full).chain(open).collect::<Vec<_>>());
    }

    #[test]
    fn without_its_insertions_the_text_is_what_it_was() {
        let mutants = mutants_of(TEXT).expect("it parses");
        assert_eq!(mutants.render(|_| None).text, TEXT);
        let all = mutants.render(|at| Some(at as u32 + 1));
        syn::parse_file(&all.text).expect("it parses with all mutants");
        for id in 1..=mutants.all.len() {
            let question = format!("mutant::is({id})");
            assert_eq!(all.text.matches(&question).count(), 1, "{id} in {}", all.text);
            let at = all.text.find(&question).expect("it is there");
            let is_of =
                |(place, ids): &&(Range<usize>, Vec<usize>)| place.contains(&at) && ids.contains(&(id - 1));
            assert!(all.places.iter().any(|place| is_of(&place)), "{id} has a place");
        }
    }
}
