"""A CPU runtime for networks full of zeros.

`graph` reads a network as `stages` (`reader`, `operations`); `layout`, `rooms` and `packing` say where numbers lie,
`plan` writes a `program`; `kernels`, on the loops in `vectors`, run it: `executor`. `engine` chooses kernels by
`measures` and checks; `replace` does so layer by layer. `accelerate` is the door.
"""
