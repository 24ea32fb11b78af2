"""Plans of many jobs laid out together: groups of equal servers over intervals of slots."""
