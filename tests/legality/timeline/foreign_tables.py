"""A small legal history from elsewhere, every table and column of it, as text."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Rows = list[list[str]]

TEXT: Mapping[str, str] = {
    "spans": """
id,start_ns,end_ns,rank,stream,module,name,op,layer,step,group,bytes,cost_ns,after
a,0,10,0,compute,attention,o_proj,gemm,0,0,-1,,10,
b,0,12,1,compute,attention,o_proj,gemm,0,0,-1,,12,
c,12,20,0,comm,attention,o_proj_all_reduce,all_reduce,0,0,7,,8,a
d,12,20,1,comm,attention,o_proj_all_reduce,all_reduce,0,0,7,,8,b
e,20,25,0,send,pipeline,send,send,,0,-1,64,5,c
f,20,25,1,send,pipeline,send,send,,0,-1,64,5,d
g,25,40,2,compute,ffn,ffn_up,gemm,0,0,-1,,15,e
h,25,40,3,compute,ffn,ffn_up,gemm,0,0,-1,,15,f
""",
    "facts": """
time_ns,kind,request,replica,used,reason
0,arrived,0,0,,
0,arrived,1,0,,
0,rejected,1,0,,its prompt is too long
0,admitted,0,0,0,
50,finished,0,0,0,
""",
    "steps": """
step,start_ns,end_ns,replica,slot,kind,prefill_tokens,decode_tokens,batch_requests,context_tokens,kv_blocks_used
0,0,40,0,,prefill,4,0,1,0,1
1,40,50,0,0,decode,0,1,1,5,2
""",
    "chunks": """
step,request,start,count,replica,sampled
0,0,0,4,0,1
""",
    "decodes": """
step,request,replica,slot
1,0,0,0
""",
    "requests": """
request,prompt_tokens,output_tokens,arrived_ns,first_token_ns,finished_ns
0,4,2,0,40,50
1,4000,2,0,,
""",
    "routes": """
step,layer,request,token,expert,selected,replica
0,0,0,0,1,5,0
0,0,0,0,5,1,0
0,0,0,1,1,1,0
0,0,0,1,2,2,0
0,0,0,2,3,3,0
0,0,0,2,4,4,0
0,0,0,3,0,0,0
0,0,0,3,1,1,0
1,0,0,4,2,2,0
1,0,0,4,5,5,0
""",
    "held": """
block,request,taken_ns,freed_ns,replica,content
7,0,0,50,0,3
8,0,40,50,0,
""",
    "flows": """
link,start_ns,end_ns,rate,capacity
3,0,10,60,100
3,5,20,40.0,1e2
""",
}
GIVEN = ("tp=2", "sp=1", "pp=2", "dp=1", "block_tokens=4", "pool_blocks=8", "top_k=2", "hidden_bytes=16")


def tables() -> dict[str, Rows]:
    """Return the tables, the first row with the names of the columns."""
    return {name: [line.split(",") for line in text.split("\n") if line] for name, text in TEXT.items()}


def written(folder: Path, whole: Mapping[str, Sequence[Sequence[str]]]) -> list[Path]:
    """Write tables as CSV."""
    for name, rows in whole.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
    return [folder / f"{name}.csv" for name in whole]
