//! A workflow as a picture: Mermaid for documents, text for terminals.

use std::fmt::Write;

use super::{Phase, State};

/// A flowchart in Mermaid.
pub fn mermaid(state: &State) -> String {
    let mut out = String::from("flowchart TD\n");
    let needs = state.plan.needs();
    let number = |id: &str| state.plan.tasks.iter().position(|task| task.id == id).unwrap_or(0);
    for (at, task) in state.plan.tasks.iter().enumerate() {
        let phase = state.tasks.get(&task.id).map_or(Phase::Pending, |state| state.phase);
        let _ = writeln!(out, "  t{at}[\"{}<br/>{}\"]:::{}", task.id, phase.as_str(), phase.as_str());
    }
    for (at, task) in state.plan.tasks.iter().enumerate() {
        let sources = state.plan.sources(&task.id);
        for need in needs.get(task.id.as_str()).into_iter().flatten() {
            // Solid: a result goes along; dotted: only the order.
            let arrow = if sources.contains(need) { "-->" } else { "-.->" };
            let _ = writeln!(out, "  t{} {arrow} t{at}", number(need));
        }
    }
    for (phase, colour) in [
        ("succeeded", "#9f9"),
        ("failed", "#f99"),
        ("running", "#9cf"),
        ("unknown", "#fc9"),
        ("approval", "#fc9"),
    ] {
        let _ = writeln!(out, "  classDef {phase} fill:{colour}");
    }
    out
}

/// One line a task, in the plan's order.
pub fn text(state: &State) -> String {
    let mut out = String::new();
    let needs = state.plan.needs();
    for task in &state.plan.tasks {
        let Some(at) = state.tasks.get(&task.id) else { continue };
        let mark = match at.phase {
            Phase::Succeeded => "✓",
            Phase::Failed | Phase::Aborted => "✗",
            Phase::Running | Phase::Expanded => "▶",
            Phase::Unknown | Phase::Approval => "?",
            Phase::Skipped => "-",
            Phase::Pending => "·",
        };
        let _ = write!(out, "{mark} {} {}", task.id, at.phase.as_str());
        if at.items > 0 {
            let done = (0..at.items).filter(|item| {
                state.tasks.get(&format!("{}[{item}]", task.id)).is_some_and(|item| item.phase.is_over())
            });
            let _ = write!(out, " {}/{}", done.count(), at.items);
        }
        let before: Vec<&str> = needs.get(task.id.as_str()).into_iter().flatten().copied().collect();
        if !before.is_empty() {
            let _ = write!(out, " (after {})", before.join(", "));
        }
        if let Some(reason) = &at.reason {
            let _ = write!(out, ": {reason}");
        }
        out.push('\n');
    }
    out
}
