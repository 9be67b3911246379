"""Reading measured points."""

from __future__ import annotations

import pyarrow
import pyarrow.parquet
import pytest

from clustersim.cost import read_points
from clustersim.errors import InputError

GOOD = """op,dtype,m,n,k,bytes,seconds
gemm,bf16,16,4096,4096,,15.5e-6
gemm,fp8,16,4096,4096,,11e-6

memory,,,,,33554432,14.2e-6
gemm,bf16,32,4096,4096,,16e-6
"""


def written(tmp_path, text, name="points.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_points_are_gathered_by_operator_and_format(tmp_path):
    points = read_points(written(tmp_path, GOOD))
    assert [(own.op, own.dtype, len(own.seconds)) for own in points] == [
        ("gemm", "bf16", 2),
        ("gemm", "fp8", 1),
        ("memory", None, 1),
    ]
    assert points[0].shape["m"].tolist() == [16.0, 32.0]
    assert points[0].seconds.tolist() == [15.5e-6, 16e-6]
    assert points[2].shape["bytes"].tolist() == [33554432.0]


def test_optional_shape_keys_may_be_blank(tmp_path):
    text = "op,batch,keys,heads,kv_heads,qk_dim,v_dim,shared_kv,seconds\nattention_decode,1,9,8,1,64,64,,1e-5\n"
    assert read_points(written(tmp_path, text))[0].shape["shared_kv"].tolist() == [0.0]


def test_parquet_reads_as_csv_does(tmp_path):
    table = pyarrow.table({"op": ["memory", "memory"], "bytes": [1e6, 2e6], "seconds": [1e-6, 2e-6]})
    pyarrow.parquet.write_table(table, tmp_path / "points.parquet")
    assert read_points(tmp_path / "points.parquet")[0].shape["bytes"].tolist() == [1e6, 2e6]


def test_every_broken_row_is_named_with_its_line(tmp_path):
    text = (
        "op,dtype,m,n,k,seconds\n"
        "gem,bf16,1,1,1,1e-6\n"
        "gemm,bf17,1,1,1,1e-6\n"
        "gemm,bf16,1,1,,1e-6\n"
        "gemm,bf16,1,1,1,0\n"
        "gemm,bf16,1,1,1,fast\n"
        "memory,,1,,,1e-6\n"
        "memory,,,,,1e-6\n"
        "gemm,bf16,١٦,1,1,1e-6\n"
        "gemm,bf16,16.5,1,1,1e-6\n"
        "gemm,bf16,1,1,1,1e-6,7\n"
    )
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_points(path)
    assert [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems] == [
        "2:1: op: unknown operator 'gem'; did you mean 'gemm'?",
        "3:6: dtype: unknown number format 'bf17'; did you mean 'bf16'?",
        "4:15: k: expected a positive number, but found nothing",
        "5:17: seconds: expected a positive number, but found '0'",
        "6:17: seconds: expected a positive number, but found 'fast'",
        "1: has no column 'bytes', which 'memory' needs",
        "7:9: m: operator 'memory' has no such shape key",
        "9:11: m: expected a positive number, but found '١٦'",
        "10:11: m: expected a whole number, but found '16.5'",
        "11: has more cells than the header: ['7']",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("op,secnds\nmemory,1\n", "unknown column 'secnds'; did you mean 'seconds'"),
        ("op,secnds\nmemory,1\n", "has no column 'seconds'"),
        ("op,op,seconds\n", "has the column 'op' twice"),
        ("op,bytes,seconds\n", "has no measurements"),
        (
            "framework,op_name,gemm_dtype,m,n,k,latency\n",
            "ai-dynamo/aiconfigurator as it was published; `clustersim cal",
        ),
        ("", "has no column 'op'"),
    ],
)
def test_a_table_without_its_columns_is_refused(tmp_path, text, expected):
    with pytest.raises(InputError, match=expected):
        read_points(written(tmp_path, text))


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"expected a \.csv or a \.parquet file"):
        read_points(tmp_path / "points.json")
    with pytest.raises(InputError, match="no such file"):
        read_points(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_points(written(tmp_path, "op,seconds\n", "points.parquet"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8"):
        read_points(tmp_path / "binary.csv")
