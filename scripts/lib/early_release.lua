-- lib/early_release: release a hold before its minimum hold is over: see lock/shorten.
--
-- What it holds stays taken for the rest of the minimum. A shared id keeps its last count for that
-- time, and gives back all counts before the last one.
-- uses     lib/shared_counts
-- defines  give_back_count(shared_counts, field, held, memory_key, lower),
--          remember_early_release(memory_key, state, memory_ttl_ms)

-- give_back_count gives back the count of an acquisition with a shared id, which has so many of
-- them. lower lowers the count of the id by one.
local function give_back_count(shared_counts, field, held, memory_key, lower)
  if tonumber(held) > 1 then
    lower()
    remove_shared_count(shared_counts, field, memory_key)
  else
    forget_shared_count(shared_counts, field)
  end
end

-- remember_early_release makes late copies of the acquisition acquire nothing. The first write is
-- one that a full Redis allows.
local function remember_early_release(memory_key, state, memory_ttl_ms)
  if memory_ttl_ms ~= '0' then
    redis.call('del', memory_key)
    redis.call('set', memory_key, state, 'px', memory_ttl_ms)
  end
end
