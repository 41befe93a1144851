"""Request logs in: every format, told by content; what cannot be used is counted, never lost."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tokenyard.workload import Workload, WorkloadError, read_workload
from tokenyard.workload.format import UNITS
from tokenyard.workload.times import TimeColumn, read_number, read_timestamp

SECOND = 10**11

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224671,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10 00:00:01.000001+00:00,76,15
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,API log
118,GPT-4,417,276,693,Conversation log
"""
BURSTGPT_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,\
Total tokens,Log Type
5.25,a1,2.0,ChatGPT,472,18,490,Conversation log
45.0,,0.5,ChatGPT,1087,0,1087,API log
118.000001,a1,1.0,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1000, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 27482, "input_length": 512, "output_length": 490, "hash_ids": [0]}
"""
VLLM_BENCH = json.dumps(
    {
        "date": "20250101-000000",
        "request_rate": 4.0,
        "max_concurrency": None,
        "duration": 9.5,
        "input_lens": [20, 30, 10],
        "output_lens": [5, 0, 7],
        "ttfts": [0.1, 0.0, 0.2],
        "itls": [[0.01] * 4, [], [0.01] * 6],
        "start_times": [1000.5, 1000.25, 1002.0],
        "generated_texts": ["a", "", "b"],
        "errors": ["", "refused", ""],
    }
)
OWN = """id,arrival,prompt_tokens,output_tokens,max_tokens,priority,predicted_tokens,deadline,\
prefix_group,prefix_tokens
a,0.5,100,10,16,1,12,,system,64
b,1.00000000001,200,20,,,25,2.5,,
"""


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    """Writes a text or bytes as a file and gives its path."""

    def write(content: str | bytes, name: str = "log") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows(workload: Workload) -> list[tuple[int, int, int]]:
    return list(
        zip(
            workload.arrival.tolist(),
            workload.prompt_tokens.tolist(),
            workload.output_tokens.tolist(),
            strict=True,
        )
    )


# --- formats ---


def test_azure_2023_keeps_all_seven_digits(log: Callable[..., Path]) -> None:
    workload = read_workload(log(AZURE_2023))
    # 50.9951690 - 46.6805900 = 4.3145790 s; 51.2224671 - 46.6805900 = 4.5418771 s.
    assert rows(workload) == [
        (0, 374, 44),
        (431_457_900_000, 396, 109),
        (454_187_710_000, 879, 55),
    ]
    assert workload.skipped == {}
    assert "Azure" in workload.source


def test_azure_2024_reads_offsets_and_times_without_a_fraction(log: Callable[..., Path]) -> None:
    assert rows(read_workload(log(AZURE_2024))) == [
        (0, 2162, 5),
        (99_007_000_000, 2399, 6),
        (99_007_100_000, 76, 15),
    ]


@pytest.mark.parametrize("text", [BURSTGPT, BURSTGPT_SESSIONS])
def test_burstgpt_counts_failed_requests(log: Callable[..., Path], text: str) -> None:
    workload = read_workload(log(text))
    assert workload.prompt_tokens.tolist() == [472, 417]
    assert workload.skipped == {"failed request (0 response tokens)": 1}
    assert workload.skipped_examples == {"failed request (0 response tokens)": "line 3: 0"}
    assert [workload.id(place) for place in range(2)] == ["1", "3"]
    # 118 - 5 s; 118.000001 - 5.25 s.
    expected = 113 * SECOND if text is BURSTGPT else 11_275_000_100_000
    assert workload.arrival.tolist() == [0, expected]


def test_mooncake_counts_milliseconds_and_keeps_hash_ids(log: Callable[..., Path]) -> None:
    workload = read_workload(log(MOONCAKE))
    assert rows(workload) == [(0, 1000, 500), (2_748_200_000_000, 512, 490)]
    assert workload.hash_ids == [(0, 1), (0,)]
    assert workload.hash_block_size == 512
    assert [request.hash_ids for request in workload.requests()] == [(0, 1), (0,)]


def test_vllm_bench_is_sorted_by_start_time_without_its_failures(log: Callable[..., Path]) -> None:
    workload = read_workload(log(VLLM_BENCH))
    assert rows(workload) == [(0, 20, 5), (150_000_000_000, 10, 7)]
    assert workload.skipped == {"failed request (0 output tokens)": 1}


def test_vllm_bench_without_start_times_at_an_infinite_rate_sends_all_at_once(
    log: Callable[..., Path],
) -> None:
    result = {"request_rate": "inf", "input_lens": [3, 4], "output_lens": [5, 6]}
    assert rows(read_workload(log(json.dumps(result, indent=1)))) == [(0, 3, 5), (0, 4, 6)]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"request_rate": 4.0, "input_lens": [3], "output_lens": [5]}, "start_times"),
        (
            {
                "request_rate": "inf",
                "max_concurrency": 8,
                "input_lens": [3],
                "output_lens": [5],
            },
            "start_times",
        ),
        ({"request_rate": 4.0, "total_input_tokens": 9}, "--save-detailed"),
        ({"input_lens": [3], "output_lens": [5, 6], "start_times": [0.0]}, "output_lens 2"),
        ({"input_lens": [3], "start_times": [0.0]}, "output_lens as a list"),
    ],
)
def test_vllm_bench_that_lacks_something_says_what(
    log: Callable[..., Path], result: dict[str, object], said: str
) -> None:
    with pytest.raises(WorkloadError, match=said):
        read_workload(log(json.dumps(result)))


def test_vllm_bench_with_several_results_appended_is_refused(log: Callable[..., Path]) -> None:
    with pytest.raises(WorkloadError, match="append-result"):
        read_workload(log(VLLM_BENCH + "\n" + VLLM_BENCH))


def test_own_log_reads_every_field(log: Callable[..., Path]) -> None:
    workload = read_workload(log(OWN))
    assert rows(workload) == [(0, 100, 10), (50_000_000_001, 200, 20)]
    assert workload.ids == ["a", "b"]
    assert workload.max_tokens is not None and workload.max_tokens.tolist() == [16, 20]
    assert workload.priority is not None and workload.priority.tolist() == [1, 0]
    assert workload.predicted_tokens is not None
    assert workload.predicted_tokens.tolist() == [12, 25]
    assert workload.deadline is not None and workload.deadline.tolist() == [-1, 250_000_000_000]
    assert workload.prefix_group == ["system", None]
    assert workload.prefix_tokens is not None and workload.prefix_tokens.tolist() == [64, 0]
    assert [request.id for request in workload.requests()] == ["a", "b"]


def test_own_json_lines_may_leave_fields_out_and_keep_every_digit(log: Callable[..., Path]) -> None:
    text = (
        '{"arrival": 604800.12345678912, "input_tokens": 5, "output_tokens": 6}\n'
        "\n"
        '{"arrival": 604800, "input_tokens": 7, "output_tokens": 8, "priority": 3, "id": "x"}\n'
        '{"arrival": 604801, "input_tokens": 7.0, "output_tokens": 8, "id": 9}\n'
    )
    workload = read_workload(log(text))
    assert rows(workload) == [(0, 7, 8), (SECOND, 7, 8)]
    assert workload.skipped == {"id missing": 1}
    workload = read_workload(log(text.replace(', "id": "x"', "").replace(', "id": 9', "")))
    assert rows(workload) == [(0, 7, 8), (12_345_678_912, 5, 6), (SECOND, 7, 8)]
    assert workload.priority is not None and workload.priority.tolist() == [3, 0, 0]
    assert [workload.id(place) for place in range(3)] == ["3", "1", "4"]


@pytest.mark.parametrize(
    "arrivals",
    [
        pl.Series([1.5, 2.5]),
        pl.Series([10**11, 2 * 10**11]).cast(pl.Decimal(38, 0)) / 10**11,
        pl.Series([datetime(2024, 5, 10), datetime(2024, 5, 10, 0, 0, 1)]),
        pl.Series([datetime(2024, 5, 10), datetime(2024, 5, 10, 0, 0, 1)]).dt.cast_time_unit("ns"),
        pl.Series([datetime(2024, 5, 10, tzinfo=UTC), datetime(2024, 5, 10, 0, 0, 1, tzinfo=UTC)]),
        pl.Series([timedelta(seconds=3), timedelta(seconds=4)]),
        pl.Series(["2024-05-10T00:00:00Z", "2024-05-10T00:00:01Z"]),
        pl.Series([1_700_000_000, 1_700_000_001]),
    ],
    ids=lambda series: str(series.dtype),
)
def test_parquet_takes_arrivals_of_any_type(tmp_path: Path, arrivals: pl.Series) -> None:
    path = tmp_path / "log"
    pl.DataFrame(
        {"arrival": arrivals, "prompt_tokens": [1.0, 2.0], "output_tokens": [3, 4]},
        schema_overrides={"output_tokens": pl.UInt16},
    ).write_parquet(path)
    assert rows(read_workload(path)) == [(0, 1, 3), (SECOND, 2, 4)]


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("arrival_ms", "ms"),
        ("arrival_us", "us"),
        ("timestamp_ns", "ns"),
        ("arrival_ticks", "ticks"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_unit_in_the_name_of_the_column_is_kept(
    tmp_path: Path, column: str, unit: str, kind: str
) -> None:
    frame = pl.DataFrame({column: [7, 10], "prompt_tokens": [1, 1], "output_tokens": [1, 1]})
    path = tmp_path / "log"
    frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
    assert read_workload(path).arrival.tolist() == [0, 3 * UNITS[unit]]


def test_names_of_columns_may_differ_in_case_spaces_and_separators(
    log: Callable[..., Path],
) -> None:
    text = "Request ID;Arrival Time;Prompt-Tokens;completion_tokens\nq;1;2;3\n"
    workload = read_workload(log(text))
    assert rows(workload) == [(0, 2, 3)]
    assert workload.id(0) == "q"


# --- detection ---


@pytest.mark.parametrize("packing", [lambda b: b, gzip.compress, zstandard.compress])
@pytest.mark.parametrize("name", ["log.parquet", "log.json.gz", "log.csv.zst", "log", "[a]*.csv"])
@pytest.mark.parametrize(
    ("text", "format"),
    [
        (AZURE_2023, "Azure"),
        (BURSTGPT, "BurstGPT"),
        (MOONCAKE, "Mooncake"),
        (VLLM_BENCH, "vllm bench"),
        (OWN, "request log"),
    ],
)
def test_format_is_told_by_content_whatever_the_name(
    log: Callable[..., Path],
    packing: Callable[[bytes], bytes],
    name: str,
    text: str,
    format: str,
) -> None:
    workload = read_workload(log(packing(text.encode()), name))
    assert format in workload.source
    assert rows(workload) == rows(read_workload(log(text, "plain")))


def test_parquet_is_told_by_content_too(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    pl.read_csv(AZURE_2023.encode()).write_parquet(path)
    assert rows(read_workload(path))[2] == (454_187_710_000, 879, 55)
    packed = tmp_path / "log.jsonl"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert rows(read_workload(packed)) == rows(read_workload(path))


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compressed_parts_put_together_are_read_whole(
    log: Callable[..., Path], compress: Callable[[bytes], bytes]
) -> None:
    half = AZURE_2023.index("2023-11-16 18:15:51")
    content = compress(AZURE_2023[:half].encode()) + compress(AZURE_2023[half:].encode())
    assert rows(read_workload(log(content))) == rows(read_workload(log(AZURE_2023)))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\n" + text,
        lambda text: text.rstrip("\n"),
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace("374", '"374"'),
    ],
    ids=["byte order mark", "CRLF", "blank line first", "no last newline", "tabs", "quotes"],
)
def test_usual_variants_of_csv_read_alike(
    log: Callable[..., Path], change: Callable[[str], str]
) -> None:
    assert rows(read_workload(log(change(AZURE_2023)))) == rows(read_workload(log(AZURE_2023)))


# --- bad input ---


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "a header but no row"),
        ("a,b\n1,2\n", r"columns 'a', 'b'(?s:.)*TIMESTAMP, ContextTokens(?s:.)*prompt_tokens"),
        ('{"a": 1}\n', "JSON Lines with the columns 'a'"),
        (b"\x00\x01\x02\xff" * 99, "neither text"),
        (AZURE_2023.encode("utf-16"), "neither text"),
        (b"PAR1" + b"x" * 99, "Parquet"),
        ("[{}]", "JSON array"),
        ("{nothing", "not a JSON object"),
        (gzip.compress(AZURE_2023.encode(), mtime=0)[:-12], "gzip data is cut off"),
        (zstandard.compress(AZURE_2023.encode())[:-12], "zstd data is cut off"),
        (b"\x1f\x8b" + b"?" * 99, "gzip data is damaged"),
        (b"\x28\xb5\x2f\xfd" + b"?" * 99, "zstd data is damaged"),
        (AZURE_2023 + "2023-11-16 18:15:52,1,2,3\n", "line 5 has 4 fields, the header has 3"),
        (AZURE_2023 + '2023-11-16 18:15:52,"1,2\n', "line 5: .*quote"),
        (
            AZURE_2023 + "2023-11-16 18:15:52+00:00,1,2\n",
            "line 5: TIMESTAMP '2023-11-16 18:15:52.00:00' has a time zone",
        ),
        (AZURE_2024 + "2024-05-10 00:00:02.5,1,2\n", "line 5: .* has no time zone"),
        (AZURE_2024 + "2024-05-10 00:00:02.500000,1,2\n", "line 5: .* has no time zone"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n05/10/2024 1:00 AM,1,2\nx,1,2\n",
            r"none of its 2 rows can be used: 2 × TIMESTAMP is not a timestamp \(line 2: '05/10",
        ),
        ("arrival,prompt_tokens,output_tokens\n0,many,1\n", "not a number .line 2: 'many'"),
        ("arrival,prompt_tokens,output_tokens\n0,1,1\n1e9,1,1\n", "2.9 years"),
        ("timestamp,prompt_tokens,output_tokens\n1700000000000,1,1\n", "timestamp_ms"),
        ("arrival,prompt_tokens,output_tokens,prefix_group\n0,1,1,a\n", "prefix_tokens"),
        (
            '{"arrival": 0, "prompt_tokens": 1, "output_tokens": 1, "hash_ids": 7}',
            "lists of whole numbers",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_why(
    log: Callable[..., Path], content: str | bytes, said: str
) -> None:
    path = log(content)
    with pytest.raises(WorkloadError, match=said) as error:
        read_workload(path)
    assert str(path) in str(error.value)


def test_a_directory_and_a_missing_file_say_so(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="a directory"):
        read_workload(tmp_path)
    with pytest.raises(WorkloadError, match="No such file"):
        read_workload(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("row", "reason", "example"),
    [
        ("2023-11-16 18:15:52,many,3", "ContextTokens is not a number", "line 5: 'many'"),
        ("2023-11-16 18:15:52,NaN,3", "ContextTokens is not a number", "line 5: 'NaN'"),
        ("2023-11-16 18:15:52,3,inf", "GeneratedTokens above 1,000,000,000", "line 5: 'inf'"),
        ("2023-11-16 18:15:52,2.5,3", "ContextTokens is not a whole number", "line 5: '2.5'"),
        ("2023-11-16 18:15:52,0,3", "ContextTokens is 0", "line 5: 0"),
        ("2023-11-16 18:15:52,3,-4", "GeneratedTokens is negative", "line 5: -4"),
        (
            "2023-11-16 18:15:52,1000000000000,3",
            "ContextTokens above 1,000,000,000",
            "line 5: 1000000000000",
        ),
        (
            "2023-11-16 18:15:52,99999999999999999999,3",
            "ContextTokens above 1,000,000,000",
            "line 5: '99999999999999999999'",
        ),
        ("2023-11-16 18:15:52,,3", "ContextTokens missing", "line 5"),
        ("2023-11-16 18:15:52,3", "GeneratedTokens missing", "line 5"),
        ("2023-11-16 18:", "TIMESTAMP is not a timestamp", "line 5: '2023-11-16 18:'"),
        (",1,2", "TIMESTAMP missing", "line 5"),
        ("2023-02-29 18:15:52.0000000,1,2", "TIMESTAMP is not a timestamp", None),
        ("2023-11-16 18:15:60.0000000,1,2", "TIMESTAMP is not a timestamp", None),
        ("2023-11-16 24:15:00.0000000,1,2", "TIMESTAMP is not a timestamp", None),
        ("NaN,1,2", "TIMESTAMP is not a timestamp", "line 5: 'NaN'"),
        ("nothing,0,many", "TIMESTAMP is not a timestamp", "line 5: 'nothing'"),
    ],
)
def test_a_row_that_cannot_be_used_is_counted_with_its_line_and_value(
    log: Callable[..., Path], row: str, reason: str, example: str | None
) -> None:
    workload = read_workload(log(AZURE_2023 + row + "\n" + AZURE_2023.splitlines()[1] + "\n"))
    assert workload.skipped == {reason: 1}
    assert example is None or workload.skipped_examples == {reason: example}
    assert workload.prompt_tokens.tolist() == [374, 374, 396, 879]
    assert [workload.id(place) for place in range(4)] == ["1", "5", "2", "3"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,2,1,1,1,0,1,,,", "id repeated"),
        (",2,1,1,1,0,1,,,", "id missing"),
        ("c,2,1,9,8,0,1,,,", "max_tokens below output_tokens"),
        ("c,2,1,1,0,0,1,,,", "max_tokens is 0"),
        ("c,2,1,1,1,0,,,,", "predicted_tokens missing"),
        ("c,2,1,1,1,0,-1,,,", "predicted_tokens is negative"),
        ("c,2,1,1,1,high,1,,,", "priority is not a number"),
        ("c,2,1,1,1,-2000000000,1,,,", "priority below -1,000,000,000"),
        ("c,2,1,1,1,0,1,-1,,", "deadline is negative"),
        ("c,2,1,1,1,0,1,1e9,,", "deadline is beyond 2.9 years"),
        ("c,2,1,1,1,0,1,soon,,", "deadline is not a number"),
        ("c,2,1,1,1,0,1,,g,-3", "prefix_tokens is negative"),
    ],
)
def test_a_wrong_optional_field_takes_its_row_out(
    log: Callable[..., Path], row: str, reason: str
) -> None:
    workload = read_workload(log(OWN + row + "\n"))
    assert workload.skipped == {reason: 1}
    assert workload.ids == ["a", "b"]


def test_a_shared_prefix_ends_with_the_prompt(log: Callable[..., Path]) -> None:
    workload = read_workload(log(OWN + "c,2,10,1,1,0,1,,g,64\n"))
    assert workload.prefix_tokens is not None and workload.prefix_tokens.tolist() == [64, 0, 10]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"timestamp": 1, "input_le', "not a JSON object"),
        ("[1]", "not a JSON object"),
        (
            '{"timestamp": 1, "input_length": 513, "output_length": 1, "hash_ids": [1]}',
            "hash_ids not one for each 512 prompt tokens",
        ),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": ["x"]}',
            "hash_ids missing, or not a list of whole numbers",
        ),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 1}',
            "hash_ids missing, or not a list of whole numbers",
        ),
        (
            '{"timestamp": true, "input_length": 5, "output_length": 1, "hash_ids": [1]}',
            "timestamp is not a number",
        ),
        (
            '{"timestamp": 1, "input_length": {"a": 1}, "output_length": 1, "hash_ids": [1]}',
            "input_length is not a number",
        ),
    ],
)
def test_a_wrong_line_of_json_is_counted(log: Callable[..., Path], line: str, reason: str) -> None:
    workload = read_workload(log(MOONCAKE + line))
    assert workload.skipped == {reason: 1}
    assert workload.skipped_examples[reason].startswith("line 3")
    assert workload.hash_ids == [(0, 1), (0,)]


def test_every_row_is_either_a_request_or_counted_once(log: Callable[..., Path]) -> None:
    random_ = random.Random(1)
    cells = ["5", "0", "-1", "", "x", "NaN", "2.5", "3.0", "1e12", "7"]
    times = ["1", "2.5", "", "x", "3"]
    lines = [
        f"{random_.choice(times)},{random_.choice(cells)},{random_.choice(cells)}"
        for _ in range(500)
    ]
    text = "arrival,prompt_tokens,output_tokens\n" + "\n".join(lines) + "\n"
    workload = read_workload(log(text))
    assert len(workload) + sum(workload.skipped.values()) == 500
    good = [
        line
        for line in lines
        if line.split(",")[0] in ("1", "2.5", "3")
        and all(cell in ("5", "3.0", "7") for cell in line.split(",")[1:])
    ]
    assert len(workload) == len(good)


def test_one_bad_byte_costs_one_row(log: Callable[..., Path]) -> None:
    workload = read_workload(log(AZURE_2023.encode() + b"2023-11-16 18:15:52,\xff,3\n"))
    assert workload.skipped == {"ContextTokens is not a number": 1}


# --- order, skip, limit, sample, rate_scale ---


def test_rows_out_of_order_are_sorted_and_ties_keep_their_order(log: Callable[..., Path]) -> None:
    text = "arrival,prompt_tokens,output_tokens\n3,1,1\n1,2,1\n3,3,1\n1,4,1\n2,5,1\n"
    workload = read_workload(log(text))
    assert workload.prompt_tokens.tolist() == [2, 4, 5, 1, 3]
    assert workload.arrival.tolist() == [0, 0, SECOND, 2 * SECOND, 2 * SECOND]
    assert [workload.id(place) for place in range(5)] == ["2", "4", "5", "1", "3"]


def test_many_ties_keep_their_order(log: Callable[..., Path]) -> None:
    text = "".join(f"{(7 * n) % 5},{n + 1},1\n" for n in range(3000))
    workload = read_workload(log("arrival,prompt_tokens,output_tokens\n" + text))
    expected = sorted(range(3000), key=lambda n: (7 * n) % 5)  # sorted() is stable
    assert workload.prompt_tokens.tolist() == [n + 1 for n in expected]


def test_times_in_different_zones_are_brought_together(log: Callable[..., Path]) -> None:
    text = (
        "timestamp,prompt_tokens,output_tokens\n2024-05-10T02:00:00.5+02:00,1,1\n"
        "2024-05-10T00:00:00Z,2,1\n2024-05-09T19:00:01-0500,3,1\n2024-05-10 00:00:02 UTC,4,1\n"
    )
    workload = read_workload(log(text))
    assert workload.prompt_tokens.tolist() == [2, 1, 3, 4]
    assert workload.arrival.tolist() == [0, SECOND // 2, SECOND, 2 * SECOND]


@pytest.fixture
def hundred(log: Callable[..., Path]) -> Path:
    rows = "".join(f"{second},{second + 1},1\n" for second in range(100))
    return log("arrival,prompt_tokens,output_tokens\n" + rows)


def test_skip_and_limit_take_a_stretch_and_count_time_from_its_first(hundred: Path) -> None:
    workload = read_workload(hundred, skip=10, limit=3)
    assert workload.prompt_tokens.tolist() == [11, 12, 13]
    assert workload.arrival.tolist() == [0, SECOND, 2 * SECOND]
    assert [workload.id(place) for place in range(3)] == ["11", "12", "13"]
    assert len(read_workload(hundred, limit=1000)) == 100
    with pytest.raises(WorkloadError, match="none of its 100 usable requests is left"):
        read_workload(hundred, skip=100)


def test_sample_keeps_a_share_that_the_seed_decides(hundred: Path) -> None:
    kept = [read_workload(hundred, sample=0.3, seed=seed).rows for seed in (0, 0, 1)]
    assert kept[0] is not None and kept[1] is not None and kept[2] is not None
    assert kept[0].tolist() == kept[1].tolist() != kept[2].tolist()
    assert 15 < len(kept[0]) < 45
    assert len(read_workload(hundred, sample=1)) == 100
    part = read_workload(hundred, sample=0.3, skip=2, limit=4).rows
    assert part is not None and part.tolist() == kept[0].tolist()[2:6]


@pytest.mark.parametrize("scale", [2, 0.5, 3, 1.1, 1e-3, 999_999.5])
def test_rate_scale_divides_arrivals_to_the_nearest_tick(hundred: Path, scale: float) -> None:
    plain, scaled = read_workload(hundred), read_workload(hundred, rate_scale=scale)
    for before, after in zip(plain.arrival.tolist(), scaled.arrival.tolist(), strict=True):
        assert abs(after - before / Fraction(str(scale))) <= Fraction(1, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"skip": -1},
        {"limit": 0},
        {"sample": 0.0},
        {"sample": 1.5},
        {"rate_scale": 0.0},
        {"rate_scale": float("nan")},
        {"rate_scale": -2.0},
    ],
)
def test_an_argument_out_of_range_is_named(hundred: Path, arguments: dict[str, float]) -> None:
    with pytest.raises(WorkloadError, match=next(iter(arguments))):
        read_workload(hundred, **arguments)  # type: ignore[arg-type]


def test_scaling_beyond_the_clock_is_an_error(hundred: Path) -> None:
    with pytest.raises(WorkloadError, match=r"2\.9 years"):
        read_workload(hundred, rate_scale=1e-6)


# --- times, against the standard library ---

fractions = st.text("0123456789", max_size=12)
zones = st.sampled_from(["", "Z", "+00:00", "+05:30", "-0700", " UTC", "+01"])
moments = st.datetimes(min_value=datetime(1902, 1, 1), max_value=datetime(2200, 1, 1))
stamps = st.builds(
    lambda moment, separator, fraction, zone: (
        f"{moment:%Y-%m-%d}".zfill(10)
        + separator
        + f"{moment:%H:%M:%S}"
        + (f".{fraction}" if fraction else "")
        + zone
    ),
    moments,
    st.sampled_from([" ", "T"]),
    fractions,
    zones,
)
almost = st.text("0123456789-:. TZ+e", max_size=30)


@given(moments, zones.filter(lambda zone: "UTC" not in zone and zone not in ("-0700", "+01")))
def test_a_timestamp_equals_what_datetime_makes_of_it(moment: datetime, zone: str) -> None:
    text = moment.isoformat(" ") + zone
    other = datetime.fromisoformat(text)
    other = other if other.tzinfo else other.replace(tzinfo=UTC)
    microseconds = (other - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert read_timestamp(text) == (microseconds * 100_000, bool(zone))


@given(stamps, st.lists(stamps | almost, max_size=20))
def test_the_quick_look_at_timestamps_agrees_with_the_slow(first: str, others: list[str]) -> None:
    column = TimeColumn("t", "s", [first])
    parts, ticks = column.quick(pl.String())
    texts = [first, *others]
    frame = pl.DataFrame({"t": texts}, schema={"t": pl.String})
    quick = frame.with_columns(parts).select(ticks.alias("q"))["q"].to_list()
    for text, seen in zip(texts, quick, strict=True):
        slow = read_timestamp(text)
        if seen is not None and slow is not None:
            # Digits beyond the 11th are rounded, in the quick look as a double: to one tick.
            digits = len(re.sub(r"^.*?(\.(\d*).*)?$", r"\2", text))
            assert abs(seen - slow[0]) <= (1 if digits > 11 else 0)
            assert slow[1] == column.zoned
    assert quick[0] is not None


@given(
    st.decimals(-(10**9), 10**9, allow_nan=False, places=11) | st.floats(-1e9, 1e9),
    st.sampled_from(list(UNITS)),
)
def test_the_quick_look_at_numbers_agrees_with_the_slow(value: object, unit: str) -> None:
    text = str(value)
    parts, ticks = TimeColumn("t", unit, [text]).quick(pl.String())
    quick = pl.DataFrame({"t": [text]}).with_columns(parts).select(ticks.alias("q"))["q"][0]
    slow = read_number(text, unit)
    assert slow is not None
    assert abs(slow - Fraction(text) * UNITS[unit]) <= Fraction(1, 2)
    assert quick == slow


@given(st.lists(st.floats(0, 1e8), min_size=1, max_size=20))
def test_seconds_as_floats_come_to_the_nearest_tick(values: list[float]) -> None:
    _, ticks = TimeColumn("t", "s", []).quick(pl.Float64())
    found = pl.DataFrame({"t": values}).select(ticks.alias("q"))["q"].to_list()
    for value, seen in zip(values, found, strict=True):
        assert abs(seen - Fraction(value) * SECOND) <= Fraction(50_001, 100_000)


def test_azure_read_like_the_standard_library_reads_it(shared_data: Path) -> None:
    for name in ("azure_conv.csv", "azure_code.csv"):
        _compare_with_csv(shared_data / name)


def test_a_small_azure_log_read_like_the_standard_library_reads_it(
    log: Callable[..., Path],
) -> None:
    _compare_with_csv(log(AZURE_2023))


def _compare_with_csv(path: Path) -> None:
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    times = []
    for line in lines:
        moment, _, fraction = line["TIMESTAMP"].partition(".")
        seconds = datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()
        times.append(int(seconds) * SECOND + int(fraction) * 10_000)  # 7 digits: 100 ns each
    expected = [
        (time - min(times), int(line["ContextTokens"]), int(line["GeneratedTokens"]))
        for time, line in zip(times, lines, strict=True)
    ]
    workload = read_workload(path)
    assert rows(workload) == sorted(expected, key=lambda row: row[0])
    assert workload.skipped == {}


def test_mooncake_read_like_the_standard_library_reads_it(shared_data: Path) -> None:
    path = shared_data / "mooncake_conversation.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    workload = read_workload(path)
    assert workload.hash_ids == [tuple(line["hash_ids"]) for line in lines]
    assert rows(workload) == [
        (line["timestamp"] * 10**8, line["input_length"], line["output_length"]) for line in lines
    ]


def test_columns_are_int64_arrays_of_their_own(log: Callable[..., Path]) -> None:
    workload = read_workload(log(OWN))
    for name in ("arrival", "prompt_tokens", "output_tokens", "max_tokens", "priority", "deadline"):
        column = getattr(workload, name)
        assert column.dtype == np.int64 and column.flags.writeable and column.flags.c_contiguous


def test_polars_is_not_loaded_before_a_file_is_read() -> None:
    code = "import sys, tokenyard.workload; sys.exit('polars' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
