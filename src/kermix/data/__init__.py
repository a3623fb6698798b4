"""Data: tables of numbers, toy sets, images."""
