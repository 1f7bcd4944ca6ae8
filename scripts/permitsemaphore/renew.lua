-- permitsemaphore/renew: extend the permits of many acquisitions; a longer lease stays.
-- uses     lib/clock, lib/longer, lib/typed
-- KEYS[1..]  each.permits_key, each.leases
-- ARGV[1..]  each.ids (text), each.ttl_ms (ms): each id has 16 bytes
-- returns    kept: 1 for each acquisition, the ms left of its longest lease if they are more, or 0
--            when not all of its permits are held any more or a key has another type; the time if
--            one is longer
local permits_and_leases, ids_and_ttls = KEYS, ARGV

local now, kept = now_ms(), {}
for i = 1, #permits_and_leases / 2 do
  local permits_key, leases = permits_and_leases[2 * i - 1], permits_and_leases[2 * i]
  local ids, ttl_ms = ids_and_ttls[2 * i - 1], ids_and_ttls[2 * i]
  local ends_at, shorter, longest = now + 1 + ttl_ms, {}, 0
  -- It removes nothing. A full Redis allows writes after this one, and a former primary refuses it.
  call_typed('zset', 'zrem', leases, '')
  kept[i] = redis.call('type', permits_key).ok == 'string' and 1 or 0
  for from = 1, #ids, 16 do
    local id = string.sub(ids, from, from + 15)
    local score = call_typed('zset', 'zscore', leases, id)
    if not score then
      kept[i] = 0
    elseif tonumber(score) < ends_at then
      shorter[#shorter + 1] = id
    else
      longest = math.max(longest, tonumber(score) - now - 1)
    end
  end
  if kept[i] == 1 then
    for _, id in ipairs(shorter) do
      redis.call('zadd', leases, 'xx', ends_at, id)
    end
    kept[i] = kept_for(longest, ttl_ms)
  end
end
return with_time(kept)
