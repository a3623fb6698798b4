"""Linear algebra: a matrix in, its Cholesky factor, polar factor or nuclear norm out, with an error bound."""
