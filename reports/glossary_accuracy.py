"""What every number of accuracy and honesty means (shown by definitions.py)."""

from __future__ import annotations

from reports.glossary_speed import Definition

_TOKENS = "oracles/*/tokens.parquet"

ACCURACY = (
    Definition(
        "token_margin", "Token margin",
        "How far the timed output's tokens are from the reference's own choice. Zero when every token is the "
        "reference's first choice. The criterion compares the candidate with the larger of baseline and noise floor.",
        "mean over tokens of max_v l_v − l_token, l being the BF16 reference's logits at that position, teacher-forced "
        "on the timed output", "nats/token", f"{_TOKENS} margin_sum / tokens",
    ),
    Definition(
        "top1", "Top-1 agreement", "Share of the timed output's tokens that are the reference's own first choice.",
        "tokens of rank 0 / tokens", "%", f"{_TOKENS} top1 / tokens",
    ),
    Definition(
        "nll", "NLL",
        "How surprised the reference is by the timed output. At temperature 1 it should equal the entropy.",
        "mean over tokens of −ln p_reference(token)", "nats/token", f"{_TOKENS} nll_sum / tokens",
    ),
    Definition(
        "excess_nll", "Excess NLL",
        "The same for answers that were sampled: zero in the mean for an honest sampler, whatever the temperature did.",
        "NLL − entropy of the reference at the same positions", "nats/token", f"{_TOKENS} nll_sum, entropy_sum",
    ),
    Definition(
        "scored_share", "Scored share", "How much of what was asked and timed could be scored under the reference.",
        "scored answers / timed requests", "%", "oracles/*/tokens.json",
    ),
    Definition(
        "flips_inexcusable", "Inexcusable flips",
        "Tokens that are not the reference's choice although the reference was sure: its margin exceeds the tie width.",
        "count / tokens", "%", f"{_TOKENS} flips_inexcusable / tokens",
    ),
    Definition(
        "loop_share", "Loop share", "Share of an answer covered by its longest immediate repetition.",
        "mean over answers", "%", f"{_TOKENS} loop_share",
    ),
    Definition(
        "floor", "Noise floor",
        "The reference against itself under other numerics: what an engine of equal quality reads. A divergence below "
        "it says nothing.", "the same formulas on the reference's own answers", "nats/token",
        "oracles/floor/tokens.parquet",
    ),
    Definition(
        "entropy", "Entropy", "How undecided the reference itself is at the positions that were scored.",
        "mean over tokens of −Σ_v p_v ln p_v under the reference", "nats/token", f"{_TOKENS} entropy_sum / tokens",
    ),
    Definition(
        "margin", "Margin", "The token margin of one arm by itself; the criterion is the ratio of two of them. "
        "On the noise floor `margin.batch`, `margin.precision` and `margin.attention` name what was changed.",
        "mean over tokens of max_v l_v − l_token", "nats/token", f"{_TOKENS} margin_sum / tokens",
    ),
    Definition(
        "margin_p99", "Margin p99", "The margin that one token in a hundred exceeds.",
        "99th percentile over tokens", "nats", f"{_TOKENS} margins",
    ),
    Definition(
        "margin_max_median", "Largest margin of an answer, median",
        "How far the worst token of a typical answer is from the reference's choice.",
        "median over answers of the largest margin", "nats", f"{_TOKENS} margin_max",
    ),
    Definition(
        "margin_first64", "Margin over the first 64 tokens",
        "How far the beginning of an answer is from the reference, before differences feed on themselves.",
        "mean over answers of the sum of the first 64 margins", "nats/answer", f"{_TOKENS} margin_first64",
    ),
    Definition(
        "tie_width", "Tie width", "Below this margin two tokens are a tie that numerics decide, and a flip is excused.",
        "from the noise floor's own flips", "nats", "oracles/floor/tokens.json",
    ),
    Definition(
        "loop_share_mean", "Loop share", "Share of an answer covered by its longest immediate repetition.",
        "mean over answers", "%", f"{_TOKENS} loop_share",
    ),
    Definition(
        "tokens_per_answer", "Tokens an answer", "How long the scored answers are.", "scored tokens / scored answers",
        "tokens", f"{_TOKENS} tokens",
    ),
    Definition(
        "engine_ids_share", "Scored by the engine's ids",
        "Answers whose token ids came from the engine. The rest were tokenised again from their text, which is an "
        "estimate of what the engine produced.",
        "answers with ids from the engine / scored answers", "%", f"{_TOKENS} ids_source",
    ),
    Definition(
        "round_trip", "Round trip", "Answers whose text, tokenised again, gives the engine's own ids back.",
        "equal answers / answers tried", "%", "oracles/*/tokens.json",
    ),
    Definition(
        "split_otherwise", "Split otherwise",
        "Answers without ids whose text fits the reference better in other tokens than the tokenizer's own.",
        "count", "answers", "oracles/*/tokens.json",
    ),
    Definition(
        "refused_ids", "Ids refused", "Answers whose ids do not spell their text, and were not believed.",
        "count", "requests", "oracles/*/tokens.json",
    ),
    Definition(
        "cut_at_context", "Cut at the context", "Answers longer than the reference's context: scored up to there.",
        "count", "requests", "oracles/*/tokens.json",
    ),
    Definition(
        "prompt_tokens_offset", "Prompt tokens offset",
        "How many prompt tokens the engine claims beyond what the chat template gives.",
        "median over requests of claimed − expected", "tokens", "oracles/*/tokens.json",
    ),
    Definition(
        "failed_share", "Failed share", "Requests that were not answered whole.", "failed / asked", "%",
        "oracles/*/protocol.json",
    ),
    Definition(
        "answer_tokens_p50", "Tokens an answer, median", "How long a typical answer is, failed requests left out.",
        "median over requests", "tokens", "oracles/*/protocol.json",
    ),
    Definition(
        "broke", "Broke it", "Requests of the candidate that broke the contract.", "count", "requests",
        "oracles/*/*.json count",
    ),
    Definition(
        "interval_95", "95 % interval",
        "Where the mean would lie 95 times in 100, were the prompts drawn anew. Documents (or, for tasks, clusters of "
        "items) are the sample, not tokens: tokens of one text move together.",
        "mean ± Student's t × standard error clustered by document or cluster", "as the mean", "oracles/*/*",
    ),
    Definition(
        "detectable_rate", "Detectable rate",
        "The smallest share of misbehaving requests that this check finds with 95 % confidence at this run's size.",
        "1 − 0.05^(1/n)", "%", "oracles/*/*.json detectable_rate",
    ),
)  # fmt: skip
