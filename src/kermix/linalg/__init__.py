"""Linear algebra: a matrix in, its factor, polar factor or nuclear norm out, with a bound."""
