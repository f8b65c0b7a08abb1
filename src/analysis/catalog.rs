//! The eight analyses: what each is called, what it takes, which shape its output has.
//!
//! Nothing here is a tax rate, a threshold or a legal rule: rules come with the call, each with an optional
//! `source` that the report repeats.

use serde_json::Value;

use super::Kind;
use super::shape::{self, Field, Shape, may, must};

/// One analysis as a caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Which one.
    pub kind: Kind,
    /// Its name for people.
    pub title: &'static str,
    /// What it computes and what it will not.
    pub description: &'static str,
}

/// All analyses, in the order of [`Kind::ALL`].
pub fn catalog() -> &'static [Entry] {
    CATALOG
}

impl Entry {
    /// The JSON Schema of `parameters`: plain types, no references, no unions.
    pub fn schema(&self) -> Value {
        let mut schema = shape::schema(parameters(self.kind));
        schema["description"] = self.description.into();
        schema
    }

    /// The parameters in one line, `*` after what is required.
    pub fn outline(&self) -> String {
        shape::outline(parameters(self.kind))
    }

    /// What the fields mean, a line for each.
    pub fn meanings(&self) -> Vec<String> {
        shape::meanings(parameters(self.kind))
    }
}

const CATALOG: &[Entry] = &[
    Entry {
        kind: Kind::TaxCalculation,
        title: "Tax calculation",
        description: "Progressive bands, allowances, tapers, credits, several levies, people and periods, in decimal \
                      arithmetic with stated rounding. Gives the amount per band, totals, the effective rate, the \
                      marginal rate, and the marginal rate below and above each threshold. All rates come with the call.",
    },
    Entry {
        kind: Kind::ComplianceCheck,
        title: "Compliance check",
        description: "Rules against facts. Each rule passes, fails, does not apply, or is unknown because a fact is \
                      missing; nothing is compliant by default. Says why, what is missing, and the nearest way to pass.",
    },
    Entry {
        kind: Kind::Eligibility,
        title: "Eligibility",
        description: "The criteria of several schemes against one set of facts: eligible, not eligible or unknown; \
                      which criteria are met, what is missing, how close it is and what would have to change.",
    },
    Entry {
        kind: Kind::Timeline,
        title: "Timeline",
        description: "Events and constraints (deadline, gap, order, window, look-back) in calendar or working days, \
                      weeks, months or years. Says which hold, the slack in days, the critical dates, and the smallest \
                      set of constraints that cannot hold together. Undated events get their possible dates.",
    },
    Entry {
        kind: Kind::Comparison,
        title: "Comparison",
        description: "The same question under several rule sets (for instance jurisdictions): a table of measures, \
                      the best per measure, differences and which inputs they come from.",
    },
    Entry {
        kind: Kind::Scenario,
        title: "Scenario",
        description: "A base and named changes: results, differences to the base, a break-even search over one \
                      number and a grid over two.",
    },
    Entry {
        kind: Kind::DataAnalysis,
        title: "Data analysis",
        description: "Records, CSV text or a file in the sandbox: description, missing values, group-by, pivot, \
                      correlation, linear trend, outliers, a chart where matplotlib is installed.",
    },
    Entry {
        kind: Kind::Custom,
        title: "Custom",
        description: "The caller's Python with `params` bound. The result is the value of the last expression, or the \
                      variable `result`. It runs in a namespace of its own, not in the context's.",
    },
];

/// What an analysis takes.
pub(super) fn parameters(kind: Kind) -> &'static Shape {
    match kind {
        Kind::TaxCalculation => &TAX,
        Kind::ComplianceCheck => &COMPLIANCE,
        Kind::Eligibility => &ELIGIBILITY,
        Kind::Timeline => &TIMELINE,
        Kind::Comparison => &COMPARISON,
        Kind::Scenario => &SCENARIO,
        Kind::DataAnalysis => &DATA,
        Kind::Custom => &CUSTOM,
    }
}

/// What a comparison or a scenario may be about: four of the analyses, or a formula of its own.
pub(super) fn inner_parameters(analysis: &str) -> Option<&'static Shape> {
    match analysis {
        "tax_calculation" => Some(&TAX),
        "compliance_check" => Some(&COMPLIANCE),
        "eligibility" => Some(&ELIGIBILITY),
        "timeline" => Some(&TIMELINE),
        "formula" => Some(&FORMULA),
        _ => None,
    }
}

static INNER: Shape =
    Shape::Choice(&["tax_calculation", "compliance_check", "eligibility", "timeline", "formula"]);

// What several have in common.

static ID: Shape = Shape::Text(100);
const NAMES: &[&str] = &["name"];
static NAME: Shape = Shape::Text(300);
static SOURCE: Shape = Shape::Text(1_000);
static IDS: Shape = Shape::List(&ID, 1, 500);
static ROUNDING: Shape = Shape::Object(&[
    may("places", &Shape::Whole(0, 8), "Decimal places; 2 when absent."),
    may("mode", &ROUNDING_MODE, "`half_up` when absent."),
    may(
        "at",
        &Shape::Choice(&["band", "levy", "total"]),
        "What is rounded: each band's amount, each levy (when absent), or only the total.",
    ),
]);
static ROUNDING_MODE: Shape =
    Shape::Choice(&["half_up", "half_even", "half_down", "up", "down", "ceiling", "floor"]);
const TITLE: Field = may("title", &NAME, "Name for people.");
const SOURCED: Field = may("source", &SOURCE, "Where the rule is published; the report repeats it.");

// tax_calculation

static TAX: Shape = Shape::Object(&[
    may("currency", &Shape::Text(20), "For instance EUR."),
    may("income", &Shape::Amount, "One income of one person; or `incomes`, `persons` or `periods`."),
    may("incomes", &INCOMES, "Several incomes of one person."),
    may("persons", &PERSONS, "Several people, each with incomes."),
    may("periods", &PERIODS, "Several periods, each with income, incomes or persons."),
    may("assessment", &ASSESSMENT, ASSESSMENT_ABOUT),
    may(
        "basis",
        &Shape::Choice(&["each", "fraction", "cumulative"]),
        "How rules apply to periods: unchanged in each (when absent), scaled by the period's `fraction`, or cumulative \
         over the periods so far (their fractions added) less what was charged before.",
    ),
    may("parts", &Shape::Positive, PARTS_ABOUT),
    may("carry_losses", &Shape::Flag, "A negative base reduces the same levy's base in later periods."),
    may("deductions", &DEDUCTIONS, "Allowances and reliefs from the base of every levy, in this order."),
    must("levies", &Shape::List(&LEVY, 1, 50), "Taxes and charges, computed in this order."),
    may("credits", &CREDITS, "Credits against the sum of the levies, in this order."),
    may("rounding", &ROUNDING, "How amounts are rounded."),
    may(
        "thresholds",
        &Shape::Flag,
        "Whether to give the marginal rates around each threshold; true when absent.",
    ),
]);
const PARTS_ABOUT: &str =
    "With `split`: into this number of parts (2.5, say) instead of the number of people.";
const ASSESSMENT_ABOUT: &str = "`separate`: each person alone (when absent); `joint`: incomes added; `split`: incomes \
                                added, divided by the number of people, and the tax multiplied by it.";
static ASSESSMENT: Shape = Shape::Choice(&["separate", "joint", "split"]);
static INCOMES: Shape = Shape::List(&INCOME, 1, 100);
static INCOME: Shape = Shape::Object(&[
    must("kind", &ID, "Name that levies refer to, for instance salary."),
    must("amount", &Shape::Amount, "May be negative (a loss)."),
]);
static PERSONS: Shape = Shape::List(&PERSON, 1, 20);
static PERSON: Shape = Shape::Object(&[
    must("id", &ID, "Name of the person.").also(NAMES),
    may("income", &Shape::Amount, "One income."),
    may("incomes", &INCOMES, "Several incomes."),
]);
static PERIODS: Shape = Shape::List(&PERIOD, 1, 60);
static PERIOD: Shape = Shape::Object(&[
    must("id", &ID, "Name of the period, for instance 2024 or 2024-03.").also(NAMES),
    may(
        "fraction",
        &Shape::Fraction,
        "With basis fraction or cumulative: its share of the time that the bands are stated for, such as \"1/12\" for a \
         month under bands of a year, 1 for a month under bands of a month.",
    ),
    may("income", &Shape::Amount, "One income of one person."),
    may("incomes", &INCOMES, "Several incomes of one person."),
    may("persons", &PERSONS, "Several people."),
]);
static TAPER: Shape = Shape::Object(&[
    must("from", &Shape::Positive, "Income above this reduces the amount."),
    must("reduce_by", &Shape::Positive, "By this much …"),
    may("per", &Shape::Positive, "… for each of this much above; 1 when absent."),
    may(
        "partial",
        &Shape::Choice(&["exact", "down", "up"]),
        "A started step counts in proportion (when absent), not at all, or whole.",
    ),
    may("to", &Shape::Positive, "The amount does not fall below this; 0 when absent."),
    may(
        "on",
        &Shape::Choice(&["total", "own"]),
        "Measured on all incomes (when absent) or on those of the levy.",
    ),
]);
static DEDUCTIONS: Shape = Shape::List(&DEDUCTION, 0, 100);
static DEDUCTION: Shape = Shape::Object(&[
    must("id", &ID, "Name of the allowance.").also(NAMES),
    TITLE,
    SOURCED,
    must("amount", &Shape::Positive, "Amount, or what `rate` is taken of."),
    may("rate", &Shape::Rate, "Only this share of the amount."),
    may("taper", &TAPER, "How the amount falls as income rises."),
    may("persons", &IDS, "Only for these people."),
    may(
        "per_person",
        &Shape::Flag,
        "In joint or split assessment once for each person; once in all when absent.",
    ),
]);
static CREDITS: Shape = Shape::List(&CREDIT, 0, 100);
static CREDIT: Shape = Shape::Object(&[
    must("id", &ID, "Name of the credit.").also(NAMES),
    TITLE,
    SOURCED,
    must("amount", &Shape::Positive, "Amount, or what `rate` is taken of."),
    may("rate", &Shape::Rate, "Only this share of the amount."),
    may("taper", &TAPER, "How the amount falls as income rises."),
    may("persons", &IDS, "Only for these people."),
    may(
        "per_person",
        &Shape::Flag,
        "In joint or split assessment once for each person; once in all when absent.",
    ),
    may("refundable", &Shape::Flag, "What is not used up is paid out; false when absent."),
]);
static LEVY: Shape = Shape::Object(&[
    must("id", &ID, "Name of the levy.").also(NAMES),
    TITLE,
    SOURCED,
    may("incomes", &IDS, "Kinds of income it is charged on; all when absent."),
    may("on_top_of", &IDS, "Kinds of income that fill the bands first, for instance under dividends."),
    may("assessment", &ASSESSMENT, "If other than the call's."),
    may("use_deductions", &Shape::Flag, "Whether the call's deductions count; true when absent."),
    may("deductions", &DEDUCTIONS, "Further deductions of this levy alone."),
    may("deduct_levies", &IDS, "Earlier levies that reduce this one's base."),
    may(
        "on_levies",
        &IDS,
        "Charged on the amounts of these earlier levies in place of incomes: a tax on a tax.",
    ),
    may("less_levies", &IDS, "Earlier levies that count against this one: an alternative minimum tax."),
    may("income_above", &Shape::Positive, "Charged only while all incomes together are above this."),
    may("income_up_to", &Shape::Positive, "Charged only while all incomes together are not above this."),
    may(
        "parts_limit",
        &PARTS_LIMIT,
        "With `parts`: against a split into fewer parts the levy falls by at most an amount for each step more.",
    ),
    may("excess_limit", &EXCESS, "At most a share of what the base has above an amount."),
    may(
        "rounding",
        &LEVY_ROUNDING,
        "Of this levy, if other than the call's; for each person in split assessment.",
    ),
    may("exempt_up_to", &Shape::Positive, "No levy at all while its incomes are not above this."),
    may("nil_rate", &Shape::Positive, "The first so much fills the bands without being charged."),
    may("base_rounding", &BASE_ROUNDING, "The base to a multiple, for instance down to whole pounds."),
    may(
        "method",
        &Shape::Choice(&["marginal", "slab"]),
        "`marginal`: each band's rate on its part (when absent); `slab`: the reached band's rate on the whole base.",
    ),
    may("flat", &Shape::Positive, "A fixed amount when the base is above 0."),
    may("bands", &Shape::List(&BAND, 1, 200), "In rising order; only the last may have no end."),
    may("minimum", &Shape::Positive, "At least this when the base is above 0."),
    may("maximum", &Shape::Positive, "At most this."),
    may("credits", &CREDITS, "Credits against this levy, in this order."),
]);
static PARTS_LIMIT: Shape = Shape::Object(&[
    must("parts", &Shape::Positive, "The fewer parts."),
    must("per", &Shape::Positive, "The step, for instance 0.5."),
    must("amount", &Shape::Positive, "The most that each step more may save."),
]);
static EXCESS: Shape =
    Shape::Object(&[must("over", &Shape::Positive, "The amount."), must("rate", &Shape::Rate, "The share.")]);
static LEVY_ROUNDING: Shape = Shape::Object(&[
    may("places", &Shape::Whole(0, 8), "Decimal places; 2 when absent."),
    may("mode", &ROUNDING_MODE, "`half_up` when absent."),
]);
static BASE_ROUNDING: Shape = Shape::Object(&[
    must("to", &Shape::Positive, "The multiple, above 0."),
    may("mode", &ROUNDING_MODE, "`down` when absent."),
]);
static BAND: Shape = Shape::Object(&[
    may("from", &Shape::Positive, "Where it starts; if given, exactly where the band before ends.")
        .also(&["min", "lower", "above"]),
    may("up_to", &Shape::Positive, "Where it ends, included; absent in the last.").also(&[
        "to",
        "max",
        "upper",
        "limit",
        "threshold",
    ]),
    may("rate", &Shape::Rate, "Share of the income in the band."),
    may(
        "formula",
        &Shape::Text(2_000),
        "In place of rate, in every band: the levy's whole amount on a base `x` that ends in this band, for instance \
         `0.42 * x - 10636.31`.",
    ),
    may("fixed", &Shape::Positive, "A fixed amount once the band is reached."),
    may(
        "widen_by_second_income",
        &Shape::Positive,
        "In joint assessment the band's end rises by the lower income, at most by this.",
    ),
]);

// compliance_check and eligibility

static FACTS: Shape = Shape::Map(&Shape::Any, 5_000);
const FACTS_ABOUT: &str =
    "What is known. A name may be a path (`company.employees`). Leave out what is not known.";
const FACT_FORMULAS: Field = may(
    "formulas",
    &EXPRESSIONS,
    "Facts computed from facts, such as a ratio; rules name them by their id, and the result shows them as `computed`.",
);
static EXPRESSIONS: Shape = Shape::List(&EXPRESSION, 1, 200);
static OPERATORS: Shape = Shape::Choice(&[
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "between",
    "in",
    "not_in",
    "contains",
    "contains_all",
    "contains_any",
    "before",
    "after",
    "on_or_before",
    "on_or_after",
    "age_at_least",
    "age_at_most",
    "days_since_at_least",
    "days_since_at_most",
    "is_true",
    "is_false",
    "known",
]);
static CONDITION: Shape = Shape::Object(&[
    may("all", &Shape::List(&CONDITION, 1, 1_000), "Every one holds."),
    may("any", &Shape::List(&CONDITION, 1, 1_000), "At least one holds."),
    may("not", &CONDITION, "It does not hold."),
    may("at_least", &Shape::Whole(1, 1_000), "With `of`: this many of them hold."),
    may("of", &Shape::List(&CONDITION, 1, 1_000), "With `at_least`."),
    may(
        "result",
        &ID,
        "Alone: an earlier rule or scheme, which passed or is eligible, or has this `status`.",
    ),
    may(
        "status",
        &Shape::Text(20),
        "With `result`: pass, fail, not_applicable, eligible, not_eligible or unknown.",
    ),
    may("fact", &Shape::Text(300), "Name of the fact that is compared."),
    may("op", &OPERATORS, "How it is compared.").also(&["operator", "comparison"]),
    may(
        "value",
        &Shape::Any,
        "What with: number, number with unit (\"5 EUR\"), text, date, list, or [low, high] for between (both included).",
    ),
    may("value_fact", &Shape::Text(300), "Compare with this fact instead of a value."),
    may(
        "at",
        &Shape::Text(300),
        "For ages and days since: the date, or the fact that holds it; the call's `as_of` when absent.",
    ),
    may(
        "measure",
        &Shape::Choice(&["count", "sum", "min", "max"]),
        "Take this over the list that the fact holds.",
    ),
    may("field", &Shape::Text(300), "With measure: the field of each item."),
    may(
        "where",
        &CONDITION,
        "With measure: only the items for which this holds (facts are the item's fields).",
    ),
    TITLE,
    SOURCED,
]);
static COMPLIANCE: Shape = Shape::Object(&[
    must("facts", &FACTS, FACTS_ABOUT).also(&["applicant", "person", "data"]),
    FACT_FORMULAS,
    may("as_of", &Shape::Date, "The date of the check, for ages and days since."),
    must("rules", &Shape::List(&RULE, 1, 10_000), "What has to hold."),
]);
static RULE: Shape = Shape::Object(&[
    must("id", &ID, "Name of the rule.").also(NAMES),
    TITLE,
    SOURCED,
    may(
        "severity",
        &Shape::Choice(&["low", "medium", "high", "critical"]),
        "How bad a failure is; medium when absent.",
    ),
    may("applies_when", &CONDITION, "When the rule applies; always when absent.")
        .also(&["applies_if", "when"]),
    must("requires", &CONDITION, "What has to hold.").also(&["condition", "requirement"]),
    may("remedy", &SOURCE, "What to do on failure; repeated."),
]);
static ELIGIBILITY: Shape = Shape::Object(&[
    must("facts", &FACTS, FACTS_ABOUT).also(&["applicant", "person", "data"]),
    FACT_FORMULAS,
    may("as_of", &Shape::Date, "The date of the question, for ages and days since."),
    must("schemes", &Shape::List(&SCHEME, 1, 500), "What one may be eligible for."),
]);
static SCHEME: Shape = Shape::Object(&[
    must("id", &ID, "Name of the scheme.").also(NAMES),
    TITLE,
    SOURCED,
    may("benefit", &NAME, "What it gives; repeated."),
    must("criteria", &Shape::List(&CRITERION, 1, 500), "All have to hold."),
]);
static CRITERION: Shape = Shape::Object(&[
    may("id", &ID, "Name of the criterion; its fact's name when absent.").also(NAMES),
    TITLE,
    SOURCED,
    must("requires", &CONDITION, "What has to hold.").also(&["condition", "requirement"]),
]);

// timeline

static TIMELINE: Shape = Shape::Object(&[
    must("events", &Shape::List(&EVENT, 1, 1_000), "What happens, dated or still to be dated."),
    must("constraints", &Shape::List(&CONSTRAINT, 1, 500), "What has to hold between them."),
    may("as_of", &Shape::Date, "Today, for the days that are left."),
    may(
        "timezone",
        &Shape::Text(60),
        "UTC (when absent), an offset like +01:00, or a zone like Europe/Dublin; gives the day of a time.",
    ),
    WEEKEND,
    HOLIDAYS,
    may("calendars", &Shape::List(&CALENDAR, 0, 50), "Further calendars, which a constraint names."),
    may(
        "month_end",
        &Shape::Choice(&["clamp", "keep"]),
        "A month from 31 January: its last day (`clamp`, when absent); `keep` also takes month ends to month ends.",
    ),
]);
const WEEKEND: Field = may("weekend", &WEEKDAYS, "Saturday and Sunday when absent.");
const HOLIDAYS: Field = may("holidays", &DAYS, "Further days that are not working days.");
static WEEKDAYS: Shape = Shape::List(&WEEKDAY, 0, 6);
static DAYS: Shape = Shape::List(&Shape::Date, 0, 5_000);
static CALENDAR: Shape = Shape::Object(&[
    must("id", &ID, "Name of the calendar, for instance IE.").also(NAMES),
    WEEKEND,
    HOLIDAYS,
]);
static WEEKDAY: Shape = Shape::Choice(&["mon", "tue", "wed", "thu", "fri", "sat", "sun"]);
static EVENT: Shape = Shape::Object(&[
    must("id", &ID, "Name of the event.").also(NAMES),
    TITLE,
    may("date", &Shape::Moment, "When; absent when it is not known yet."),
    may("end", &Shape::Moment, "Last day, for look-backs over stays; the same day when absent."),
]);
static CONSTRAINT: Shape = Shape::Object(&[
    may("id", &ID, "Name of the constraint; its type and number when absent.").also(NAMES),
    TITLE,
    SOURCED,
    must(
        "type",
        &Shape::Choice(&[
            "deadline",
            "not_before",
            "min_gap",
            "max_gap",
            "order",
            "working_day",
            "look_back",
        ]),
        "deadline, not_before: `event` and `date`; min_gap, max_gap: `from`, `to`, `amount`, `unit`; order: `events`; \
         working_day: `event`; look_back: `of`, `at`, `amount`, `unit` and a limit.",
    ),
    may("event", &ID, "The event that is bound."),
    may("date", &Shape::Date, "A fixed date."),
    may("from", &ID, "Event that a gap starts at."),
    may("to", &ID, "Event that a gap ends at."),
    may("amount", &Shape::Whole(0, 100_000), "Length of the gap or window."),
    may("unit", &Shape::Choice(&["days", "working_days", "weeks", "months", "years"]), "Days when absent."),
    may(
        "calendar",
        &ID,
        "The calendar whose working days count; the call's weekend and holidays when absent.",
    ),
    may(
        "roll",
        &Shape::Choice(&["none", "next", "previous"]),
        "A computed date that is not a working day moves to the next or previous one; not when absent.",
    ),
    may("events", &Shape::List(&ID, 2, 200), "Events in their order."),
    may("strict", &Shape::Flag, "With order: the same day is too early."),
    may("of", &IDS, "With look_back: the events that count."),
    may("at", &ID, "With look_back: the event at which the window ends, included."),
    may("max_days", &Shape::Whole(0, 100_000), "With look_back: at most this many days inside the window."),
    may("min_days", &Shape::Whole(0, 100_000), "With look_back: at least this many days inside the window."),
    may(
        "max_count",
        &Shape::Whole(0, 100_000),
        "With look_back: at most this many events inside the window.",
    ),
    may(
        "min_count",
        &Shape::Whole(0, 100_000),
        "With look_back: at least this many events inside the window.",
    ),
]);

// comparison and scenario

static FORMULA: Shape = Shape::Object(&[
    must(
        "values",
        &Shape::Map(&Shape::Quantity, 500),
        "Named numbers, each with a unit where it has one (\"25 EUR\", \"1.17 EUR/GBP\"): different units are never added.",
    ),
    must("formulas", &EXPRESSIONS, "Computed in this order; each may use the ones before."),
    may("rounding", &ROUNDING, "How results are rounded."),
]);
static EXPRESSION: Shape = Shape::Object(&[
    must("id", &ID, "Name of the result.").also(NAMES),
    must(
        "expression",
        &Shape::Text(2_000),
        "+ - * / ** % and comparisons, `a if c else b`, min, max, abs, round(x, places), floor, ceil over the names.",
    ),
    SOURCED,
]);
static ANY_PARAMETERS: Shape = Shape::Map(&Shape::Any, 100);
static MEASURES: Shape = Shape::List(&MEASURE, 1, 50);
static MEASURE: Shape = Shape::Object(&[
    must(
        "id",
        &ID,
        "A figure of the analysis. tax_calculation: tax, net, income, effective_rate, marginal_rate, or a levy's id; \
         compliance_check: passed, failed, unknown; eligibility: eligible, not_eligible, unknown; timeline: failed, unknown, \
         least_slack_days, or `latest:` or `earliest:` and an undated event's id; formula: its id.",
    ),
    TITLE,
    may(
        "better",
        &Shape::Choice(&["lower", "higher"]),
        "Which is best; the analysis's own sense when absent.",
    ),
]);
static COMPARISON: Shape = Shape::Object(&[
    must("analysis", &INNER, "What is asked under each rule set."),
    may("common", &ANY_PARAMETERS, "Parameters of that analysis that all share."),
    must("rule_sets", &Shape::List(&RULE_SET, 2, 50), "What differs."),
    may("measures", &MEASURES, "Figures to compare; the analysis's main ones when absent."),
    may(
        "rates_to",
        &Shape::Map(&Shape::Positive, 200),
        "Currency to its value in one common currency, when they differ.",
    ),
    may("common_currency", &Shape::Text(20), "The currency that `rates_to` leads to."),
]);
static RULE_SET: Shape = Shape::Object(&[
    must("id", &ID, "Name of the rule set, for instance a jurisdiction.").also(NAMES),
    TITLE,
    SOURCED,
    must(
        "parameters",
        &ANY_PARAMETERS,
        "Joined into `common`: objects field by field, everything else replaced.",
    ),
]);
static SCENARIO: Shape = Shape::Object(&[
    must("analysis", &INNER, "What is computed in each scenario."),
    must("base", &ANY_PARAMETERS, "Its parameters in the base case."),
    may("scenarios", &Shape::List(&CASE, 0, 50), "Named changes."),
    may("measures", &MEASURES, "Figures to compare; the analysis's main ones when absent."),
    may("break_even", &BREAK_EVEN, "Where a figure reaches a target as one number changes."),
    may("grid", &GRID, "A figure over two numbers."),
]);
static CASE: Shape = Shape::Object(&[
    must("id", &ID, "Name of the scenario.").also(NAMES),
    TITLE,
    SOURCED,
    may("based_on", &ID, "Another scenario to start from; the base when absent."),
    must("set", &Shape::List(&CHANGE, 0, 100), "What changes, in this order."),
]);
static CHANGE: Shape = Shape::Object(&[
    must("path", &Shape::Text(300), "Place in the parameters, for instance levies[0].bands[1].rate."),
    must("value", &Shape::Any, "The new value."),
]);
static BREAK_EVEN: Shape = Shape::Object(&[
    must("path", &Shape::Text(300), "The number that changes, for instance incomes[0].amount."),
    must("low", &Shape::Amount, "Where the search starts."),
    must("high", &Shape::Amount, "Where it ends."),
    must("measure", &ID, "The figure."),
    must("target", &Shape::Amount, "What the figure should reach."),
    may("tolerance", &Shape::Positive, "How near the number is found; 0.01 when absent."),
]);
static AXIS: Shape = Shape::Object(&[
    must("path", &Shape::Text(300), "The number that changes."),
    must("values", &Shape::List(&Shape::Amount, 1, 30), "What it is set to."),
]);
static GRID: Shape = Shape::Object(&[
    must("rows", &AXIS, "The number down the side."),
    must("columns", &AXIS, "The number along the top."),
    must("measure", &ID, "The figure in each cell."),
]);

// data_analysis

static DATA: Shape = Shape::Object(&[
    may("records", &Shape::List(&RECORD, 0, 500_000), "Rows as objects; or `csv` or `file`.")
        .also(&["data", "rows"]),
    may(
        "csv",
        &Shape::Text(4_000_000),
        "Rows as CSV text with a heading line; delimiter and quotes are detected.",
    ),
    may("file", &Shape::Text(1_000), "Path of a file in the sandbox: CSV, TSV, JSON (a list) or JSON lines."),
    may("format", &Shape::Choice(&["csv", "tsv", "json", "jsonl"]), "Of the file; by its name when absent."),
    may(
        "encoding",
        &Shape::Choice(&["utf-8", "utf-16", "cp1252", "latin-1"]),
        "Of the file; detected when absent.",
    ),
    may("delimiter", &Shape::Text(1), "Of CSV and TSV; detected when absent."),
    may(
        "decimal",
        &Shape::Choice(&[".", ","]),
        "Decimal sign of numbers in text; detected for each column when absent.",
    ),
    may(
        "missing_marks",
        &Shape::List(&Shape::Text(40), 0, 50),
        "Texts that mean no value, besides empty, NA, N/A, null, none, nan and -.",
    ),
    may(
        "date_order",
        &Shape::Choice(&["dmy", "mdy"]),
        "Which part of 3/4/2024 is the day; detected for each column where it is certain.",
    ),
    may("join", &JOIN, "A second table, whose columns are joined to the rows."),
    may("fill", &Shape::List(&FILL, 0, 100), "What replaces missing values of a column, in this order."),
    may(
        "operations",
        &Shape::List(&OPERATION, 1, 50),
        "What to compute; description and missing values when absent.",
    ),
]);
static JOIN: Shape = Shape::Object(&[
    may("records", &Shape::List(&RECORD, 0, 500_000), "Rows as objects; or `csv` or `file`."),
    may("csv", &Shape::Text(4_000_000), "Rows as CSV text with a heading line."),
    may("file", &Shape::Text(1_000), "Path of a file in the sandbox."),
    must("on", &COLUMNS, "Columns that both tables have and that must be equal."),
    may("how", &Shape::Choice(&["inner", "left"]), "`left` keeps rows without a match; inner when absent."),
]);
static FILL: Shape = Shape::Object(&[
    must("column", &Shape::Text(300), "The column."),
    must("with", &Shape::Choice(&["value", "mean", "median", "previous"]), "What is put there."),
    may("value", &Shape::Any, "With `value`: the value."),
]);
static RECORD: Shape = Shape::Map(&Shape::Any, 500);
static COLUMNS: Shape = Shape::List(&Shape::Text(300), 1, 100);
static FUNCTION: Shape =
    Shape::Choice(&["count", "sum", "mean", "median", "percentile", "min", "max", "stdev", "distinct"]);
static OPERATION: Shape = Shape::Object(&[
    must(
        "do",
        &Shape::Choice(&[
            "describe",
            "missing",
            "group_by",
            "time_series",
            "pivot",
            "correlation",
            "trend",
            "outliers",
            "chart",
        ]),
        "describe, missing: `columns`; group_by: `by`, `measures`; time_series: `date`, \
         `period`, `measures`; pivot: `rows`, `across`, `column`, `function`; \
         correlation: `columns`, `method`; trend: `x`, `y`, `predict`; outliers: `column`, `method`, `limit`; chart: `kind`, `x`, `y`.",
    ).also(&["type", "operation"]),
    may("columns", &COLUMNS, "Columns; all (or all numeric ones) when absent."),
    may("by", &COLUMNS, "Columns that make the groups."),
    may("measures", &Shape::List(&DATA_MEASURE, 1, 30), "What to compute of each group."),
    may("date", &Shape::Text(300), "With time_series: the column of dates."),
    may(
        "period",
        &Shape::Choice(&["day", "week", "month", "quarter", "year"]),
        "With time_series, or with group_by for its columns of dates.",
    ),
    may("rows", &Shape::Text(300), "Column whose values become rows."),
    may("across", &Shape::Text(300), "Column whose values become columns."),
    may("column", &Shape::Text(300), "The column of values."),
    may("function", &FUNCTION, "`sum` when absent."),
    PERCENT,
    may(
        "method",
        &Shape::Choice(&["pearson", "spearman", "iqr", "zscore", "mad"]),
        "pearson or spearman for correlation; iqr (when absent), zscore or mad for outliers.",
    ),
    may(
        "limit",
        &Shape::Positive,
        "How far out is an outlier: 1.5 for iqr, 3 for zscore, 3.5 for mad when absent.",
    ),
    may("predict", &Shape::List(&Shape::Any, 1, 100), "With trend: places of x at which to give its value."),
    may("x", &Shape::Text(300), "Column along; numbers or dates."),
    may("y", &Shape::Text(300), "Column up."),
    may("kind", &Shape::Choice(&["line", "bar", "scatter", "histogram"]), "Of the chart; line when absent."),
    may("top", &Shape::Whole(1, 1_000), "At most this many groups; 100 when absent."),
]);
static DATA_MEASURE: Shape = Shape::Object(&[
    may("column", &Shape::Text(300), "Column; not needed for count."),
    must("function", &FUNCTION, "What to compute."),
    PERCENT,
]);
static PERCENT_SHAPE: Shape = Shape::Whole(0, 100);
const PERCENT: Field = may("percent", &PERCENT_SHAPE, "With percentile: which one, for instance 90.");

// custom

static CUSTOM: Shape = Shape::Object(&[
    must(
        "code",
        &Shape::Text(102_400),
        "Python. The value of its last expression, or `result`, is the result.",
    ),
    may("params", &Shape::Map(&Shape::Any, 5_000), "Bound to `params` as a dictionary.").also(&[
        "parameters",
        "inputs",
        "variables",
    ]),
    may(
        "numbers",
        &Shape::Choice(&["float", "decimal"]),
        "What a number with a fraction becomes in `params`: float (when absent) or decimal.Decimal.",
    ),
]);

/// The fields that a report's `output` has at least, with `[` for a list, `{` for an object, `"` for a text.
pub(super) fn output_fields(kind: Kind) -> &'static [(&'static str, char)] {
    match kind {
        Kind::TaxCalculation => &[("periods", '['), ("totals", '{'), ("thresholds", '[')],
        Kind::ComplianceCheck => &[("overall", '"'), ("counts", '{'), ("rules", '[')],
        Kind::Eligibility => &[("schemes", '['), ("missing", '[')],
        Kind::Timeline => {
            &[("events", '['), ("constraints", '['), ("critical_dates", '['), ("conflict", '[')]
        }
        Kind::Comparison => &[("rule_sets", '['), ("best", '['), ("differing_inputs", '[')],
        Kind::Scenario => &[("base", '{'), ("scenarios", '[')],
        Kind::DataAnalysis => &[("rows", '0'), ("columns", '['), ("results", '[')],
        Kind::Custom => &[("success", 'b'), ("result", '*'), ("error", '*')],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_schema(schema: &Value, visit: &mut dyn FnMut(&serde_json::Map<String, Value>)) {
        match schema {
            Value::Object(fields) => {
                visit(fields);
                fields.values().for_each(|inner| each_schema(inner, visit));
            }
            Value::Array(items) => items.iter().for_each(|inner| each_schema(inner, visit)),
            _ => {}
        }
    }

    #[test]
    fn schemas_use_only_what_every_host_reads() {
        assert_eq!(catalog().iter().map(|entry| entry.kind).collect::<Vec<_>>(), Kind::ALL);
        for entry in catalog() {
            let schema = entry.schema();
            assert_eq!(schema["type"], "object");
            assert_eq!(schema["additionalProperties"], false);
            each_schema(&schema, &mut |fields| {
                for banned in ["$ref", "$defs", "oneOf", "anyOf", "allOf"] {
                    assert!(!fields.contains_key(banned), "{}: {banned}", entry.kind);
                }
                let formatted = fields.get("format").is_some_and(Value::is_string); // as a keyword, not a field's name
                assert!(!formatted, "{}: {fields:?}", entry.kind);
            });
            assert!(entry.outline().starts_with('{'), "{}", entry.outline());
        }
    }
}
