-- lib/polls: the mark of clients that poll for a name.
-- A client that hands a lock off among its waiters asks for it now and then, because no message
-- tells the clients that poll. The mark is a help: a key of another type counts as one, and stays.
-- defines  mark_poll(mark, ttl_ms)

local function mark_poll(mark, ttl_ms)
  if type(redis.pcall('get', mark)) ~= 'table' then
    redis.pcall('set', mark, '1', 'px', ttl_ms) -- fails on a full Redis: no mark
  end
end
