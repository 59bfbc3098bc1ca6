"""A worker pool past one machine: Dask does membership, authenticated messages and launching, Corral the rest."""
