"""What every number of the tasks and of the engines' own log-probabilities means (shown by definitions.py)."""

from __future__ import annotations

from reports.glossary_speed import Definition

_TASKS = "oracles/*/tasks.json"
_LOGITS = "oracles/*/logits.json"

TASKS = (
    Definition(
        "tasks", "Task score",
        "Score of lm-eval's tasks, graded on the timed responses; failed requests count as wrong.",
        "mean over items, candidate − baseline, paired by item", "pt", "oracles/*/tasks.json",
    ),
    Definition(
        "task_score", "Task score, one arm", "Share of a task's items answered right; a failed request is wrong.",
        "mean over items, repeats averaged; interval clustered by passage or template", "%",
        _TASKS,
    ),
    Definition(
        "reference_score", "Reference's score", "What the reference server scores on the same items, asked apart. It "
        "is there for comparison; nothing is judged by it.", "mean over items", "%", "oracles/reference/tasks.json",
    ),
    Definition(
        "flip_lost", "Lost", "Answers that the baseline got right and the candidate wrong.", "count of items", "items",
        "oracles/*/flips.parquet",
    ),
    Definition(
        "flip_gained", "Gained", "Answers that the candidate got right and the baseline wrong.", "count of items",
        "items", "oracles/*/flips.parquet",
    ),
    Definition(
        "grade", "Grade", "What lm-eval gave the answer; a fate other than graded stands below it and counts as 0.",
        "1 right, 0 wrong, or a part", "", "oracles/*/tasks.parquet",
    ),
    Definition(
        "flip", "Flip", "Whether the candidate lost or gained this answer against the baseline.",
        "sign of the grades' difference", "", "oracles/*/tasks.parquet",
    ),
    Definition(
        "score", "Score", "Share of items answered right: over all, by task, and on public and sealed items apart.",
        "mean over items, repeats averaged; interval clustered by passage or template", "%", _TASKS,
    ),
    Definition(
        "difference", "Difference", "Candidate minus baseline on the same items, over all and by task.",
        "mean over items of the paired difference; 95 % interval clustered by passage or template", "pt", _TASKS,
    ),
    Definition(
        "lost_p", "Lost by chance", "How likely two equal engines lose at least so many of the answers that differ. "
        "Below 0.05 it is an alarm, never a verdict.",
        "one-sided mid-p McNemar of lost against gained", "", _TASKS,
    ),
    Definition(
        "refused", "Refused", "Task requests that the engine answered with an HTTP error. They count as wrong.",
        "count / items", "%", _TASKS,
    ),
    Definition(
        "timeout", "Timed out", "Task requests without an answer in time. They count as wrong.", "count / items", "%",
        _TASKS,
    ),
    Definition(
        "error", "Failed", "Task requests that failed in any other way. They count as wrong.", "count / items", "%",
        _TASKS,
    ),
    Definition(
        "empty", "Empty", "Task answers without text. They count as wrong.", "count / items", "%", _TASKS,
    ),
    Definition(
        "unfinished-thinking", "Unfinished thinking", "Answers that never left their thinking. They count as wrong.",
        "count / items", "%", _TASKS,
    ),
    Definition(
        "over-limit", "Over the limit", "Answers longer than was allowed. They count as wrong.", "count / items", "%",
        _TASKS,
    ),
    Definition(
        "unparsed", "Unparsed", "Answers in which lm-eval's own filter found nothing to grade. They count as wrong.",
        "count / items", "%", _TASKS,
    ),
    Definition(
        "at_limit", "Ended by max_tokens", "Answers that the length limit ended.", "count / items", "%", _TASKS,
    ),
    Definition(
        "stop_kept", "Ran past a stop", "Answers with a stop string inside: cut there before grading.",
        "count / items", "%", _TASKS,
    ),
    Definition(
        "thinking_share", "Thinking share", "Answers that came with visible thinking, which is stripped before "
        "grading.", "count / items", "%", _TASKS,
    ),
    Definition(
        "thinking_chars", "Thinking", "How much was thought.", "median over answers", "characters", _TASKS,
    ),
    Definition(
        "length_over_reference", "Length, against the reference", "Whether an engine writes more than the reference.",
        "characters written / the reference's on the same items", "x", _TASKS,
    ),
    Definition(
        "thinking_over_reference", "Thinking, against the reference", "Whether an engine thinks longer than it.",
        "characters thought / the reference's on the same items", "x", _TASKS,
    ),
    Definition(
        "thinking_over_other_arm", "Thinking, against the other arm", "Whether one engine thinks longer.",
        "mean of this arm / mean of the other, same questions", "×", _TASKS,
    ),
)  # fmt: skip

LOGITS = (
    Definition(
        "kld", "KL divergence",
        "How far the engine's probabilities are from the reference's, where the engine gives them.",
        "mean over positions of Σ_v p_v (ln p_v − ln q_v)", "nats/token", _LOGITS,
    ),
    Definition(
        "delta_p", "Δp", "Change in the probability of the token that was there.",
        "engine's probability − reference's, per position; mean, percentiles, root mean square", "probability", _LOGITS,
    ),
    Definition(
        "same_top", "Same top token", "Positions at which engine and reference would choose the same token.",
        "count / positions", "%", _LOGITS,
    ),
    Definition(
        "covered_mass", "Covered mass",
        "How much of the reference's probability lies on the ids that the engine returned. The divergence is a lower "
        "bound: what is not covered is compared as one lump.", "mean over positions", "%", _LOGITS,
    ),
    Definition(
        "ppl", "Perplexity", "How surprised the engine is by the text.", "exp of the mean −ln p", "", _LOGITS,
    ),
    Definition(
        "ppl_reference", "Perplexity of the reference", "The same for the reference.", "exp of the mean −ln p", "",
        _LOGITS,
    ),
    Definition(
        "ppl_ratio", "Perplexity ratio", "Engine over reference on the same tokens: 1 when equally surprised.",
        "perplexity / perplexity of the reference; interval from paired tokens", "×", _LOGITS,
    ),
    Definition(
        "ppl_log_ratio", "Log perplexity ratio", "The same on the scale where it is symmetric.",
        "mean of the difference in −ln p", "nats/token", _LOGITS,
    ),
    Definition(
        "ppl_correlation", "Perplexity correlation", "Whether both find the same tokens surprising.",
        "correlation of −ln p over positions", "", _LOGITS,
    ),
    Definition(
        "k3", "k3", "Divergence from log-probabilities of sampled tokens alone, in the given state of the sampler.",
        "mean of r − 1 − ln r with r = p_reference / p_engine", "nats/token", _LOGITS,
    ),
)  # fmt: skip
