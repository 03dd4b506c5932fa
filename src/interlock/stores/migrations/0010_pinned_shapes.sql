-- The pinned tasks of a shape, so that whether it is empty is one look.

CREATE INDEX ready_pinned_by_shape ON ready (shape, rank, seq) WHERE pin IS NOT NULL;
