"""Names of other packages over eitri's operators."""
