-- lib/fresh: decide whether what a renewal has found may still shorten a lease: see lib/longer.
-- uses     lib/clock
-- defines  is_fresh(seen_at): the renewal was a moment ago. Since then no command has promised
--          more: it would have found the lease long enough, and changed nothing

local freshness = 1000 -- ms; for a little longer, the client sends nothing that promises more

local function is_fresh(seen_at)
  local age = now_ms() - seen_at
  return age >= 0 and age < freshness
end
