-- permitsemaphore/renew: extend the permits of many acquisitions; a longer lease stays.
-- uses       clock, typed
-- KEYS[1..]  free permits and leases of each
-- ARGV[1..]  ids of 16 bytes each, and ttl, ms, of each
-- returns    for each, 1, or 0 when not all of its permits are there any more; so if a key holds another type
local at, kept = now(), {}
for i = 1, #KEYS / 2 do
  local leases, ids = KEYS[2 * i], ARGV[2 * i - 1]
  local ending, shorter = at + 1 + ARGV[2 * i], {}
  kept[i] = redis.call('type', KEYS[2 * i - 1]).ok == 'string' and 1 or 0
  for from = 1, #ids, 16 do
    local id = string.sub(ids, from, from + 15)
    local score = typed('zset', 'zscore', leases, id)
    if not score then
      kept[i] = 0
    elseif tonumber(score) < ending then
      shorter[#shorter + 1] = id
    end
  end
  if kept[i] == 1 and #shorter > 0 then
    redis.call('zrem', leases, '') -- removes nothing; a full Redis allows further writes after this one
    for _, id in ipairs(shorter) do
      redis.call('zadd', leases, 'xx', ending, id)
    end
  end
end
return kept
