"""The paper's four costs: two sets of points, components or moments in, one number out."""
