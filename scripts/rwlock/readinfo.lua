-- rwlock/readinfo: who reads.
-- uses     readers
-- KEYS[1]  lock hash
-- KEYS[2]  what the keys of readers' holds begin with
-- returns  {id, count, what its longest hold has left in ms, id, ...}
local answer, entries = {}, redis.call('hgetall', KEYS[1])
for i = 1, #entries, 2 do
  local id, count = entries[i], tonumber(entries[i + 1])
  if count and string.sub(id, -6) ~= ':write' then
    local left = life(KEYS[2], id, count)
    if left > 0 then
      for _, value in ipairs({id, count, left}) do
        table.insert(answer, value)
      end
    end
  end
end
return answer
